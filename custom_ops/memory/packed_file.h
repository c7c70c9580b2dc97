#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "memory/huge_page_pool.h"

namespace coreai {

/// Identifies a packed weight by all bytes that it is made of.
using PackedKey = std::array<std::uint64_t, 2>;

/// A hash of everything that is added, in order. It reads some 10 GB/s; equal keys of different
/// contents are as likely as equal random numbers of 64 bits.
class ContentHash {
 public:
  void Add(const void* data, std::size_t size);
  void Add(std::uint64_t number) { Add(&number, sizeof(number)); }
  PackedKey key() const;

 private:
  static constexpr std::size_t kLanes = 8;
  void Mix(const void* block);

  std::uint64_t lanes_[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8};
};

class PackedFile;

/// What a packed weight is made of: numbers, and bytes that stay where they are.
class WeightSource {
 public:
  void Add(std::uint64_t number) { numbers_.Add(number); }
  void Add(const void* data, std::size_t size) {
    if (size != 0) parts_.push_back({static_cast<const char*>(data), size});
  }

  /// The key of all bytes. A file knows those of mapped files that it has seen unchanged, so that
  /// they are not read again. Pages of mapped files leave the memory of the process.
  PackedKey KeyIn(PackedFile* file) const;

 private:
  struct Part {
    const char* data;
    std::size_t size;
  };
  bool AddPlaces(ContentHash* hash) const;

  ContentHash numbers_;
  std::vector<Part> parts_;
};

/// A file of weights in layouts of kernels, which processes map and share. It grows: a process that
/// misses a weight appends it. What is in it never changes. Contents are found by their keys, so
/// that a file of another model is of no use and does no harm. All functions may be called by any
/// thread.
///
///     64 bytes: kFileMark
///     then, for each weight: 64 bytes of Record, and its contents, padded to multiples of 64
///     and for each place that weights were packed from, the same with the key of the weight
class PackedFile {
 public:
  /// The file at `path`, which is created; null without a path, and on Windows. Throws
  /// std::runtime_error if it cannot be opened or is another file.
  static std::shared_ptr<PackedFile> Open(const std::string& path);

  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;
  ~PackedFile();

  /// The contents, aligned to 64; null if there are none of this key and size.
  const char* Find(const PackedKey& key, std::size_t size);

  /// Appends contents unless another process has done so, and returns them; null if that fails, as
  /// on a full disk, which leaves the file as it was.
  const char* Add(const PackedKey& key, const char* data, std::size_t size);

 private:
  struct Place {
    std::size_t offset, size;
    const char* data;  // null until it is mapped
  };
  struct Mapping {
    char* start;
    std::size_t size;
  };

  PackedFile(int file, bool is_writable) : file_(file), is_writable_(is_writable) {}
  bool Begin();
  void Scan();
  bool Append(const PackedKey& key, const char* data, std::size_t size);
  const char* Map(std::size_t offset, std::size_t size);
  const char* Lookup(const PackedKey& key, std::size_t size);

  const int file_;
  const bool is_writable_;
  std::mutex mutex_;
  std::size_t end_ = 0;  // of the weights that are complete
  std::map<PackedKey, Place> places_;
  std::vector<Mapping> mappings_;
};

/// A packed weight: in a PackedFile, or in huge pages of its own.
class PackedMemory {
 public:
  PackedMemory() = default;

  /// Without a file, or where it has no contents of the key, `fill` writes `size` bytes, aligned to
  /// 64.
  template <class Fill>
  PackedMemory(std::shared_ptr<PackedFile> file, const PackedKey& key, std::size_t size,
               const Fill& fill)
      : file_(std::move(file)) {
    if (file_ != nullptr) data_ = file_->Find(key, size);
    if (data_ != nullptr) return;
    own_ = AllocateHugePages(size);
    // What a layout does not use may not be what this process had there before.
    if (file_ != nullptr) std::memset(own_.get(), 0, size);
    fill(own_.get());
    if (file_ != nullptr) data_ = file_->Add(key, own_.get(), size);
    if (data_ != nullptr) {
      own_.reset();
    } else {
      data_ = own_.get();
    }
  }

  const char* get() const { return data_; }

 private:
  std::shared_ptr<PackedFile> file_;
  HugePageMemory own_;
  const char* data_ = nullptr;
};

}  // namespace coreai
