#include "memory/huge_page_pool.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <algorithm>
#include <iterator>
#include <new>

namespace coreai {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kSlab = std::size_t{64} << 20;
constexpr std::size_t kMost = std::size_t{1} << 46;

std::size_t RoundUp(std::size_t size, std::size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

#ifdef _WIN32
// Huge pages need a privilege there that few users have, so these are ordinary pages.
char* MapPages(std::size_t size) {
  return static_cast<char*>(VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
}

void UnmapPages(char* start, std::size_t) { VirtualFree(start, 0, MEM_RELEASE); }
#else
// Maps `size` bytes, a multiple of kPage, at a multiple of kPage; null if there is no memory.
char* MapPages(std::size_t size) {
  void* const mapped = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(mapped);
  const std::size_t before = -reinterpret_cast<std::size_t>(start) % kPage;
  if (before != 0) munmap(start, before);
  munmap(start + before + size, kPage - before);
#ifdef MADV_HUGEPAGE
  madvise(start + before, size, MADV_HUGEPAGE);  // without effect where they are turned off
#endif
  return start + before;
}

void UnmapPages(char* start, std::size_t size) { munmap(start, size); }
#endif

}  // namespace

HugePagePool::~HugePagePool() {
  for (const auto& [slab, size] : slabs_) UnmapPages(slab, size);
}

void* HugePagePool::Allocate(std::size_t size) noexcept try {
  if (size > kMost) return nullptr;
  size = std::max(RoundUp(size, kAlignment), kAlignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = free_.lower_bound({size, nullptr});
  if (found == free_.end()) found = Map(std::max(RoundUp(size, kPage), kSlab));
  if (found == free_.end()) return nullptr;
  const auto block = blocks_.find(found->second);
  const std::size_t rest = block->second.size - size;
  if (rest != 0) {
    char* const next = block->first + size;
    const auto remainder = free_.emplace(rest, next).first;
    try {
      blocks_.emplace(next, Block{rest, block->second.slab, true});
    } catch (const std::bad_alloc&) {
      free_.erase(remainder);
      throw;
    }
  }
  free_.erase(found);
  block->second.size = size;
  block->second.is_free = false;
  return block->first;
} catch (const std::bad_alloc&) {
  return nullptr;
}

bool HugePagePool::Free(void* address) noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(static_cast<char*>(address));
  if (found == blocks_.end() || found->second.is_free) return false;
  const auto block = Merge(found);
  free_.emplace(block->second.size, block->first);
  char* const slab = block->second.slab;
  if (!IsEmpty(slab)) return true;
  // Keep one empty slab, so that a run does not map what the run before has unmapped.
  const bool others = std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& other) {
    return other.first != slab && IsEmpty(other.first);
  });
  if (others || block->second.size > kSlab) Unmap(slab);
  return true;
} catch (const std::bad_alloc&) {
  return true;  // the block is lost until its neighbors are freed
}

std::size_t HugePagePool::MappedBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [slab, size] : slabs_) sum += size;
  return sum;
}

bool HugePagePool::IsEmpty(char* slab) const {
  const Block& first = blocks_.at(slab);
  return first.is_free && first.size == slabs_.at(slab);
}

// Returns the free block of a new slab; the end of `free_` if there is no memory.
HugePagePool::FreeBlocks::iterator HugePagePool::Map(std::size_t size) {
  char* const slab = MapPages(size);
  if (slab == nullptr) return free_.end();
  try {
    const auto block = free_.emplace(size, slab).first;
    blocks_.emplace(slab, Block{size, slab, true});
    slabs_.emplace(slab, size);
    return block;
  } catch (const std::bad_alloc&) {
    free_.erase({size, slab});
    blocks_.erase(slab);
    UnmapPages(slab, size);
    throw;
  }
}

void HugePagePool::Unmap(char* slab) {
  const auto found = slabs_.find(slab);
  free_.erase({found->second, slab});
  blocks_.erase(slab);
  UnmapPages(slab, found->second);
  slabs_.erase(found);
}

// Marks a block as free and merges it with its free neighbors in the slab, which leave `free_`.
HugePagePool::Blocks::iterator HugePagePool::Merge(Blocks::iterator block) {
  block->second.is_free = true;
  const auto joins = [&](Blocks::iterator other) {
    return other != blocks_.end() && other->second.is_free &&
           other->second.slab == block->second.slab;
  };
  if (const auto next = std::next(block); joins(next)) {
    free_.erase({next->second.size, next->first});
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return block;
  if (const auto before = std::prev(block); joins(before)) {
    free_.erase({before->second.size, before->first});
    before->second.size += block->second.size;
    blocks_.erase(block);
    return before;
  }
  return block;
}

HugePagePool& SharedHugePages() {
  static auto& pool = *new HugePagePool;
  return pool;
}

HugePageMemory AllocateHugePages(std::size_t size) {
  void* const block = SharedHugePages().Allocate(size);
  if (block == nullptr) throw std::bad_alloc();
  return HugePageMemory(static_cast<char*>(block));
}

}  // namespace coreai
