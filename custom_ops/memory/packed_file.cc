#include "memory/packed_file.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "memory/file_pages.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <utility>
#endif

namespace coreai {
namespace {

constexpr std::size_t kBlock = 64;  // of the hash, and of the file
constexpr std::size_t kSmall = std::size_t{16} << 10;
// Of a mapped file that is in memory at a time.
constexpr std::size_t kPiece = std::size_t{8} << 20;

}  // namespace

// Each step is a bijection of a lane, so that contents that differ in one word have other keys.
void ContentHash::Mix(const void* block) {
  std::uint64_t words[kLanes];
  static_assert(sizeof(words) == kBlock, "a word for each lane");
  std::memcpy(words, block, sizeof(words));
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::uint64_t product = (lanes_[i] ^ words[i]) * 0x9E3779B97F4A7C15u;
    lanes_[i] = product ^ product >> 32;
  }
}

void ContentHash::Add(const void* data, std::size_t size) {
  const std::uint64_t head[kLanes] = {size};
  Mix(head);
  const char* next = static_cast<const char*>(data);
  for (; size >= kBlock; next += kBlock, size -= kBlock) Mix(next);
  if (size == 0) return;
  char tail[kBlock] = {};
  std::memcpy(tail, next, size);
  Mix(tail);
}

PackedKey ContentHash::key() const {
  PackedKey key = {0x243F6A8885A308D3u, 0x13198A2E03707344u};
  for (std::uint64_t& half : key) {
    for (const std::uint64_t lane : lanes_) {
      half = (half ^ lane) * 0xD6E8FEB86659FD93u;
      half ^= half >> 29;
    }
  }
  return key;
}

bool WeightSource::AddPlaces(ContentHash* hash) const {
  bool has_places = false;
  hash->Add(numbers_.key().data(), sizeof(PackedKey));
  for (const Part& part : parts_) {
    // To find the place of a small part takes as long as to read it.
    const auto place = part.size < kSmall ? std::nullopt : PlaceInFile(part.data, part.size);
    if (!place && part.size >= kSmall) return false;
    has_places |= place.has_value();
    hash->Add(place ? static_cast<const void*>(place->data()) : part.data,
              place ? sizeof(*place) : part.size);
  }
  return has_places;
}

PackedKey WeightSource::KeyIn(PackedFile* file) const {
  ContentHash places;
  const bool has_places = AddPlaces(&places);
  if (has_places) {
    PackedKey key;
    if (const char* const known = file->Find(places.key(), sizeof(key))) {
      std::memcpy(key.data(), known, sizeof(key));
      return key;
    }
  }
  ContentHash contents = numbers_;
  for (const Part& part : parts_) {
    for (std::size_t done = 0; done < part.size; done += kPiece) {
      const std::size_t some = std::min(kPiece, part.size - done);
      contents.Add(part.data + done, some);
      ReleaseFilePages(part.data + done, some);
    }
  }
  const PackedKey key = contents.key();
  if (has_places) {
    file->Add(places.key(), reinterpret_cast<const char*>(key.data()), sizeof(key));
  }
  return key;
}

#ifdef _WIN32
std::shared_ptr<PackedFile> PackedFile::Open(const std::string&) { return nullptr; }
PackedFile::~PackedFile() = default;
const char* PackedFile::Find(const PackedKey&, std::size_t) { return nullptr; }
const char* PackedFile::Add(const PackedKey&, const char*, std::size_t) { return nullptr; }
#else
namespace {

constexpr char kFileMark[kBlock] = "coreai_onnx packed weights 1\n";
constexpr std::uint64_t kRecordMark = 0x54484749455743A1u;
constexpr std::size_t kMost = std::size_t{1} << 46;
constexpr std::size_t kWritten = std::size_t{256} << 20;  // at a time

// The number of `mark` is of this processor's byte order.
struct Record {
  std::uint64_t mark = kRecordMark;
  PackedKey key = {};
  std::uint64_t size = 0;
  std::uint64_t zeros[4] = {};

  bool IsValid() const {
    return mark == kRecordMark && size <= kMost &&
           std::all_of(zeros, zeros + 4, [](std::uint64_t zero) { return zero == 0; });
  }
};
static_assert(sizeof(Record) == kBlock, "as the file has it");

std::size_t RoundUp(std::size_t size, std::size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

std::size_t SizeOfFile(int file) {
  struct stat status = {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode)
             ? static_cast<std::size_t>(status.st_size)
             : 0;
}

bool Read(int file, std::size_t offset, void* data, std::size_t size) {
  return pread(file, data, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

bool Write(int file, std::size_t offset, const void* data, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const char* const next = static_cast<const char*>(data) + done;
    const ssize_t count =
        pwrite(file, next, std::min(kWritten, size - done), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

// The only process that writes to a file, while it lives.
class Writer {
 public:
  explicit Writer(int file) : file_(file) {
    while (flock(file, LOCK_EX) != 0) {
      if (errno != EINTR) return;
    }
    holds_ = true;
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    if (holds_) flock(file_, LOCK_UN);
  }
  bool holds() const { return holds_; }

 private:
  const int file_;
  bool holds_ = false;
};

}  // namespace

std::shared_ptr<PackedFile> PackedFile::Open(const std::string& path) {
  if (path.empty()) return nullptr;
  static std::mutex mutex;
  // Never destroyed: a session may outlive the destructors of static objects.
  static auto& files = *new std::map<std::string, std::weak_ptr<PackedFile> >;
  const std::lock_guard<std::mutex> lock(mutex);
  if (auto open = files[path].lock()) return open;
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  const bool is_writable = file >= 0;
  const int reason = errno;
  if (!is_writable) file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("cannot open " + path + ": " + std::strerror(reason));
  std::shared_ptr<PackedFile> opened;
  try {
    opened.reset(new PackedFile(file, is_writable));
  } catch (...) {
    close(file);
    throw;
  }
  if (!opened->Begin()) {
    throw std::runtime_error(path + " is not a file of packed weights of this version");
  }
  files[path] = opened;
  return opened;
}

PackedFile::~PackedFile() {
  for (const Mapping& mapping : mappings_) munmap(mapping.start, mapping.size);
  close(file_);
}

// Finds what the file has, and maps it; returns false if it is another file.
bool PackedFile::Begin() {
  if (is_writable_) {
    const Writer writer(file_);
    const bool is_new = writer.holds() && SizeOfFile(file_) == 0;
    if (is_new && !Write(file_, 0, kFileMark, kBlock)) return false;
  }
  char mark[kBlock];
  if (!Read(file_, 0, mark, kBlock) || std::memcmp(mark, kFileMark, kBlock) != 0) return false;
  end_ = kBlock;
  Scan();
  // One mapping, so that huge pages of the file can be mapped as such.
  const char* const start = Map(0, end_);
  for (auto& [key, place] : places_) {
    if (start != nullptr) place.data = start + place.offset;
  }
  return true;
}

// Finds the weights that were appended. One that is not complete is the end.
void PackedFile::Scan() {
  const std::size_t size = SizeOfFile(file_);
  for (Record record; end_ + kBlock <= size && Read(file_, end_, &record, kBlock);) {
    const std::size_t offset = end_ + kBlock;
    if (!record.IsValid() || record.size > size - offset) return;
    places_.emplace(record.key, Place{offset, record.size, nullptr});
    end_ = offset + RoundUp(record.size, kBlock);
  }
}

const char* PackedFile::Map(std::size_t offset, std::size_t size) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t before = offset % page;
  void* const mapped = mmap(nullptr, before + size, PROT_READ, MAP_SHARED, file_,
                            static_cast<off_t>(offset - before));
  if (mapped == MAP_FAILED) return nullptr;
  mappings_.push_back({static_cast<char*>(mapped), before + size});
  return static_cast<const char*>(mapped) + before;
}

const char* PackedFile::Lookup(const PackedKey& key, std::size_t size) {
  const auto found = places_.find(key);
  if (found == places_.end() || found->second.size != size) return nullptr;
  Place& place = found->second;
  if (place.data == nullptr) place.data = Map(place.offset, size);
  return place.data;
}

const char* PackedFile::Find(const PackedKey& key, std::size_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Lookup(key, size);
}

const char* PackedFile::Add(const PackedKey& key, const char* data, std::size_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_writable_ || size == 0) return nullptr;
  const Writer writer(file_);
  if (!writer.holds()) return nullptr;
  Scan();
  if (places_.count(key) == 0 && Append(key, data, size)) Scan();
  return Lookup(key, size);
}

// The record is written when the contents are on the disk: what has one is complete.
bool PackedFile::Append(const PackedKey& key, const char* data, std::size_t size) {
  Record record;
  record.key = key;
  record.size = size;
  // A process that ended in between may have left something there.
  if (ftruncate(file_, static_cast<off_t>(end_)) != 0) return false;
  const bool is_complete = Write(file_, end_ + kBlock, data, size) && fsync(file_) == 0 &&
                           Write(file_, end_, &record, kBlock);
  if (!is_complete && ftruncate(file_, static_cast<off_t>(end_)) != 0) return false;
  return is_complete;
}
#endif

}  // namespace coreai
