#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <thread>

#include "ort/kernel_context.h"

namespace coreai {

struct FreeScratch {
  void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
};
using ScratchMemory = std::unique_ptr<char, FreeScratch>;

/// A thread fetches this fraction of its share of the items that are left.
inline constexpr std::size_t kShares = 4;

/// Uninitialized memory aligned to 64 bytes. Throws std::bad_alloc.
inline ScratchMemory AllocateScratch(std::size_t bytes) {
  return ScratchMemory(static_cast<char*>(::operator new(bytes, std::align_val_t{64})));
}

/// Calls `body(item, scratch)` once for each item below `items`, on onnxruntime's threads, each
/// call with its own scratch memory (`bytes` long, aligned to 64) that no concurrent call uses.
/// Threads fetch runs of items that become shorter, so that uneven items are balanced, and most
/// items follow the previous one in memory. `body` must not throw. Throws std::bad_alloc.
template <class Body>
void RunItems(const KernelContext& context, std::size_t items, std::size_t bytes,
              const Body& body) {
  // Allocation from the system takes microseconds.
  static const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t workers = std::min(items, threads);
  const std::size_t stride = (bytes + 63) / 64 * 64;
  const ScratchMemory scratch = AllocateScratch(workers * stride);
  std::atomic<std::size_t> next{0};
  context.ParallelFor(workers, [&](std::size_t worker) {
    // Items need no memory ordering among each other; the end of the parallel run synchronizes.
    const auto take = [&](std::size_t& first) -> std::size_t {
      first = next.load(std::memory_order_relaxed);
      while (first < items) {
        const std::size_t run = std::max<std::size_t>(1, (items - first) / (kShares * workers));
        if (next.compare_exchange_weak(first, first + run, std::memory_order_relaxed)) return run;
      }
      return 0;
    };
    std::size_t item = 0;
    while (const std::size_t run = take(item)) {
      for (const std::size_t end = item + run; item < end; ++item) {
        body(item, scratch.get() + worker * stride);
      }
    }
  });
}

}  // namespace coreai
