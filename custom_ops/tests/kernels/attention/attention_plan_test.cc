#include <cstdint>
#include <vector>

#include "kernels/attention/attention_tiles.h"
#include "tensor.h"

namespace coreai::testing {
namespace {

AttentionProblem Heads(std::size_t heads, std::size_t key_heads, std::size_t value_heads) {
  AttentionProblem problem = {};
  problem.batch = 2;
  problem.heads = heads;
  problem.key_heads = key_heads;
  problem.value_heads = value_heads;
  problem.queries = 40;
  problem.head_dim = problem.value_dim = 64;
  return problem;
}

TEST(AttentionPlan, AGroupSharesKeysAndValues) {
  EXPECT_EQ(AttentionGroup(Heads(8, 8, 8)), 1u);
  EXPECT_EQ(AttentionGroup(Heads(8, 2, 2)), 4u);
  EXPECT_EQ(AttentionGroup(Heads(8, 1, 4)), 2u);
  EXPECT_EQ(AttentionGroup(Heads(12, 4, 6)), 1u);  // groups of 3 and of 2 share nothing whole
  EXPECT_EQ(AttentionGroup(Heads(0, 0, 0)), 1u);
}

TEST(AttentionPlan, FewRowsOfAGroupShareATile) {
  EXPECT_EQ(AttentionItems(Heads(8, 8, 8)), 2u * 8u);       // 40 rows: one tile
  EXPECT_EQ(AttentionItems(Heads(8, 2, 2)), 2u * 2u * 2u);  // 160 rows: two heads in a small tile
  EXPECT_EQ(AttentionItems(Heads(64, 16, 16)), 2u * 16u);   // 160 rows: one tile, of enough
  AttentionProblem none = Heads(8, 8, 8);
  none.queries = 0;
  EXPECT_EQ(AttentionItems(none), 0u);
}

TEST(AttentionPlan, ManyRowsAreCutHeadByHead) {
  AttentionProblem problem = Heads(8, 2, 2);
  problem.queries = 1024;
  EXPECT_EQ(AttentionSpan(problem), 1024u);
  EXPECT_EQ(AttentionTileRows(problem), 288u);
  EXPECT_EQ(AttentionItems(problem), 2u * 8u * 4u);
  for (std::size_t queries = 1; queries < 2000; queries += 7) {
    problem.queries = queries;
    const std::size_t rows = AttentionTileRows(problem);
    EXPECT_LE(rows, kTileRows) << queries;
    EXPECT_GE(AttentionItems(problem) * rows, problem.batch * problem.heads * queries) << queries;
    EXPECT_TRUE(AttentionSpan(problem) == queries || rows % queries == 0) << queries;
  }
}

TEST(AttentionPlan, TilesAreLongerWithTileRegistersIfThereAreMany) {
  AttentionProblem problem = Heads(16, 4, 4);
  problem.tile_registers = true;
  problem.queries = 1024;
  EXPECT_EQ(AttentionTileRows(problem), 1056u);  // whole panels, a head is one tile
  EXPECT_EQ(AttentionItems(problem), 2u * 16u);
  EXPECT_EQ(AttentionScratchRows(problem), kLongTileRows);
  problem.queries = 4096;
  EXPECT_EQ(AttentionTileRows(problem), 1056u);
  EXPECT_EQ(AttentionItems(problem), 2u * 16u * 4u);
  problem.batch = 1;
  problem.queries = 1024;  // 16 long tiles are too few
  EXPECT_EQ(AttentionTileRows(problem), 288u);
  EXPECT_EQ(AttentionScratchRows(problem), kTileRows);
  for (std::size_t queries = 1; queries < 5000; queries += 7) {
    problem.queries = queries;
    EXPECT_LE(AttentionTileRows(problem), AttentionScratchRows(problem)) << queries;
  }
}

TEST(AttentionPlan, ScratchDoesNotGrowWithTheLengths) {
  AttentionProblem small = Heads(1, 1, 1);
  small.queries = small.keys = 10;
  AttentionProblem large = small;
  large.queries = large.keys = 1000000;
  for (const DType dtype : AllDTypes()) {
    EXPECT_EQ(AttentionScratchBytes(small, dtype), AttentionScratchBytes(large, dtype));
  }
}

TEST(AttentionPlan, ScratchArraysAreAlignedAndInside) {
  AttentionProblem odd = Heads(1, 1, 1);
  odd.head_dim = 3;
  odd.value_dim = 5;
  odd.mask.kind = MaskKind::kBool;
  std::vector<char> memory(AttentionScratchBytes(odd, DType::kFloat16) + 64);
  char* start = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  const AttentionScratch<float> scratch(odd, start);
  EXPECT_EQ(scratch.bytes, AttentionScratchBytes(odd, DType::kFloat16));
  for (const void* array :
       {static_cast<void*>(scratch.query), static_cast<void*>(scratch.bias),
        static_cast<void*>(scratch.values), static_cast<void*>(scratch.last_key)}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array) % 64, 0u);
    EXPECT_LT(static_cast<const char*>(array), start + scratch.bytes);
  }
}

}  // namespace
}  // namespace coreai::testing
