#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace coreai {

/// A pool of memory in huge pages of 2 MiB, for large blocks.
///
/// Linux gives a process pages of 4 KiB unless it asks for huge ones. A product of one row reads
/// all weights once, and with small pages it waits for address translations: huge pages make it
/// read 1.5 times as fast (docs/internals/performance_log.md, "Generation").
///
/// Blocks are aligned to 64 bytes, and taken from slabs that are mapped on demand and unmapped when
/// all their blocks are free. One empty slab is kept. All functions may be called by any thread.
class HugePagePool {
 public:
  HugePagePool() = default;
  HugePagePool(const HugePagePool&) = delete;
  HugePagePool& operator=(const HugePagePool&) = delete;
  ~HugePagePool();

  /// Returns a block of at least `size` bytes, or null if there is no memory. Does not throw.
  void* Allocate(std::size_t size) noexcept;

  /// Frees a block. Returns false if `block` is not the start of a block of this pool.
  bool Free(void* block) noexcept;

  /// The bytes that are mapped.
  std::size_t MappedBytes() const;

 private:
  struct Block {
    std::size_t size;
    char* slab;
    bool is_free;
  };
  using Blocks = std::map<char*, Block>;
  using FreeBlocks = std::set<std::pair<std::size_t, char*>>;

  bool IsEmpty(char* slab) const;
  FreeBlocks::iterator Map(std::size_t size);
  void Unmap(char* slab);
  Blocks::iterator Merge(Blocks::iterator block);

  mutable std::mutex mutex_;
  Blocks blocks_;                       // by address
  FreeBlocks free_;                     // by size, then address
  std::map<char*, std::size_t> slabs_;  // sizes
};

/// The pool of the process, which is never destroyed.
HugePagePool& SharedHugePages();

/// Returns a block to the pool of the process.
struct FreeHugePages {
  void operator()(char* block) const { SharedHugePages().Free(block); }
};
using HugePageMemory = std::unique_ptr<char, FreeHugePages>;

/// Uninitialized memory in the pool of the process, aligned to 64 bytes. Throws std::bad_alloc.
HugePageMemory AllocateHugePages(std::size_t size);

}  // namespace coreai
