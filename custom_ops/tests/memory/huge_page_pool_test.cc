#include "memory/huge_page_pool.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz/starve.h"
#include "gtest/gtest.h"

namespace coreai {
namespace {

constexpr std::size_t kSlab = std::size_t{64} << 20;

char* Take(HugePagePool& pool, std::size_t size) { return static_cast<char*>(pool.Allocate(size)); }

TEST(HugePagePool, BlocksAreAlignedAndApart) {
  HugePagePool pool;
  std::vector<std::pair<char*, std::size_t>> blocks;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{300000}, kSlab + 1}) {
    char* const block = Take(pool, size);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    std::memset(block, static_cast<int>(blocks.size()), size);
    blocks.emplace_back(block, size);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t at = 0; at < blocks[i].second; at += 4097) {
      ASSERT_EQ(blocks[i].first[at], static_cast<char>(i));
    }
  }
}

TEST(HugePagePool, FreedNeighborsAreOneBlock) {
  HugePagePool pool;
  char* const a = Take(pool, kSlab / 4);
  char* const b = Take(pool, kSlab / 4);
  char* const c = Take(pool, kSlab / 2);
  EXPECT_EQ(pool.MappedBytes(), kSlab);
  EXPECT_TRUE(pool.Free(a));
  EXPECT_TRUE(pool.Free(c));
  EXPECT_TRUE(pool.Free(b));
  EXPECT_EQ(Take(pool, kSlab), a);
  EXPECT_EQ(pool.MappedBytes(), kSlab);
}

TEST(HugePagePool, OneEmptySlabIsKept) {
  HugePagePool pool;
  char* const a = Take(pool, kSlab);
  char* const b = Take(pool, kSlab);
  char* const large = Take(pool, 2 * kSlab);
  EXPECT_EQ(pool.MappedBytes(), 4 * kSlab);
  EXPECT_TRUE(pool.Free(large));
  EXPECT_EQ(pool.MappedBytes(), 2 * kSlab);
  EXPECT_TRUE(pool.Free(a));
  EXPECT_EQ(pool.MappedBytes(), 2 * kSlab);
  EXPECT_TRUE(pool.Free(b));
  EXPECT_EQ(pool.MappedBytes(), kSlab);
}

TEST(HugePagePool, OtherMemoryIsRefused) {
  HugePagePool pool;
  int other = 0;
  char* const block = Take(pool, 128);
  EXPECT_FALSE(pool.Free(&other));
  EXPECT_FALSE(pool.Free(block + 64));
  EXPECT_TRUE(pool.Free(block));
  EXPECT_FALSE(pool.Free(block));
  EXPECT_EQ(pool.Allocate(std::numeric_limits<std::size_t>::max()), nullptr);
}

TEST(HugePagePool, ManyThreads) {
  HugePagePool pool;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<char*, std::size_t>> held;
    for (int step = 0; step < 2000; ++step) {
      if (held.size() < 8 && random() % 2 == 0) {
        const std::size_t size = 1 + random() % (std::size_t{8} << 20);
        char* const block = Take(pool, size);
        block[0] = block[size - 1] = static_cast<char>(seed);
        held.emplace_back(block, size);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        const auto [block, size] = held.back();
        held.pop_back();
        EXPECT_EQ(block[0], static_cast<char>(seed));
        EXPECT_EQ(block[size - 1], static_cast<char>(seed));
        EXPECT_TRUE(pool.Free(block));
      }
    }
    for (const auto& each : held) EXPECT_TRUE(pool.Free(each.first));
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool.MappedBytes(), kSlab);
}

// Takes and frees blocks of two slabs, with the `which`-th allocation of the pool itself refused.
// Returns whether there was one.
bool WorksStarved(HugePagePool& pool, std::size_t which) {
  const fuzz::Running library(fuzz::Party::kLibrary);
  fuzz::Starve(which);
  char* const blocks[] = {Take(pool, kSlab / 4), Take(pool, kSlab / 2), Take(pool, kSlab)};
  for (char* const block : blocks) {
    if (block != nullptr) pool.Free(block);
  }
  const bool starved = fuzz::Starved();
  fuzz::Starve(0);
  return starved;
}

TEST(HugePagePool, RefusedAllocationsOfItsOwnLeaveItWhole) {
  bool starved = true;
  for (std::size_t which = 1; starved; ++which) {
    HugePagePool pool;
    starved = WorksStarved(pool, which);
    EXPECT_FALSE(WorksStarved(pool, 0));
    char* const block = Take(pool, kSlab);
    ASSERT_NE(block, nullptr) << which;
    EXPECT_TRUE(pool.Free(block));
    EXPECT_LE(pool.MappedBytes(), 2 * kSlab) << which;
  }
}

}  // namespace
}  // namespace coreai
