#include "fuzz/layouts.h"

#include <utility>

namespace coreai::fuzz {
namespace {

Layouts AttentionLayouts() {
  return {{{"B H T D", "B H S D", "B H S E", "B H T S", "H"}},
          {{"B W T D", "B V S D", "B V S E", "T S", "W"}},
          {{"B W T D", "B V S D", "B V S D", "B 1 1 S", "W"}}};
}

Layouts BshdAttentionLayouts() {
  return {{{"B T H D", "B S H D", "B S H E", "B H T S"}},
          {{"B T W D", "B S V D", "B S V E", "T S"}},
          {{"B T W D", "B S V D", "B S V D", "B 1 1 S"}}};
}

Layouts GatherMmLayouts() {
  const auto layout = [](std::vector<const char*> inputs, std::int64_t axes, std::int64_t turned) {
    return Layout{std::move(inputs), {{"num_batch_axes", axes}, {"transpose_rhs", turned}}};
  };
  return {layout({"B T D", "H D E", "#B", "#B"}, 0, 0),
          layout({"B H T D", "B S D E", "#B T", "#B T"}, 1, 0),
          layout({"H T D", "V E D", "#T", "#T"}, 0, 1),
          layout({"H T D", "V D E", "#T V", "#V"}, 0, 0),
          layout({"T D", "V D E", "#S", "#T"}, 0, 0),
          layout({"T D", "V E D", "#S", "#T 1"}, 0, 1),
          layout({"T 1 D", "V E D", "#T", "#T V"}, 0, 1),
          layout({"B T D", "B D E", "#S", "#S"}, 2, 0)};
}

// Attributes of a weight; activations are rounded to 8 bits or not.
Ints Few(std::int64_t bits, std::int64_t group, std::int64_t rounding, std::int64_t scales = 0) {
  return {
      {"bits", bits}, {"group_size", group}, {"activation_bits", rounding}, {"scale_bits", scales}};
}

// Two 4-bit codes or one 8-bit code to a group, many, or groups of 16 bytes, as tiles of AMX take
// them. The later ones have minimums, and scales of two levels, two groups to a block.
Layouts LinearNbitsLayouts() {
  return {
      {{"B T G", "%S F 1", "S F", "S F", "P", "S", kNone, kNone}, Few(4, 2, 0)},
      {{"T G", "%S F 1", "S F", "%S F", "P", "S", kNone, kNone}, Few(4, 2, 0)},
      {{"T F", "%S F 1", "S F", "%S F", "P", "S", kNone, kNone}, Few(8, 1, 0)},
      {{"T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(4, 32, 8)},
      {{"B T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(2, 64, 8)},
      {{"T R", "%S K Q", "S K", "S K", "P", "S", kNone, kNone}, Few(8, 16, 8)},
      {{"T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(4, 32, 0)},
      {{"B T R", "%S K Q", "S K", "%S K", "P", "S", kNone, kNone}, Few(2, 64, 0)},
      {{"T R", "%S K Q", "S K", "S K", "P", "S", kNone, kNone}, Few(8, 16, 0)},
      {{"T R", "%S K 5", "S K", "%S K", "P", "S", kNone, kNone}, Few(5, 8, 0)},
      {{"T R", "%S K 3", "S K", "%S K", "P", "S", kNone, kNone}, Few(6, 4, 8)},
      {{"B T R", "%S K Q", "S K", kNone, kNone, "S", "!S K", kNone}, Few(4, 32, 0)},
      {{"T R", "%S K Q", "S K", kNone, kNone, "S", "!S K", kNone}, Few(4, 32, 8)},
      {{"T U", "%S M 5", "S L", kNone, kNone, "S", kNone, "!%S L 1"}, Few(5, 8, 0, 4)},
      {{"T U", "%S M 3", "S L", kNone, kNone, "S", "!S L", "!%S L 3"}, Few(6, 4, 8, 6)},
      {{"B T U", "%S M Q", "S L", kNone, "P", "S", kNone, "!%S L 2"}, Few(4, 32, 0, 8)},
      {{"T U", "%S M Q", "S L", kNone, kNone, "S", "!S L", "!%S L 3"}, Few(2, 64, 0, 6)},
      {{"T Y", "%S L 5", "S L", kNone, "!P", "S", kNone, kNone, "!%9 X", "!@9 4"}, Few(8, 256, 0)},
      {{"B T Y", "%S L 5", "S L", kNone, "!P", "S", kNone, kNone, "!%9 X", "!@9 4"},
       Few(8, 256, 8)}};
}

Layouts GatherMmNbitsLayouts() {
  return {
      {{"B T G", "%H S F 1", "H S F", "#B", "H S F", "P", kNone, kNone}, Few(4, 2, 0)},
      {{"T 1 1 G", "%H S F 1", "H S F", "#T B", "%H S F", "P", kNone, kNone}, Few(4, 2, 0)},
      {{"T F", "%V S F 1", "V S F", "#", "%V S F", "P", kNone, kNone}, Few(8, 1, 0)},
      {{"B T R", "%H S K Q", "H S K", "#B", "%H S K", "P", kNone, kNone}, Few(4, 32, 8)},
      {{"B T R", "%H S K Q", "H S K", "#", "%H S K", "P", kNone, kNone}, Few(8, 16, 8)},
      {{"B T R", "%H S K Q", "H S K", "#B", "%H S K", "P", kNone, kNone}, Few(4, 32, 0)},
      {{"B T R", "%H S K Q", "H S K", "#", "%H S K", "P", kNone, kNone}, Few(8, 16, 0)},
      {{"B T R", "%H S K Q", "H S K", "#B", kNone, kNone, "!H S K", kNone}, Few(4, 32, 0)},
      {{"B T U", "%H S M 5", "H S L", "#B", kNone, kNone, kNone, "!%H S L 1"}, Few(5, 8, 0, 4)},
      {{"B T U", "%H S M 3", "H S L", "#", kNone, kNone, "!H S L", "!%H S L 3"}, Few(6, 4, 8, 6)},
      {{"B T U", "%H S M Q", "H S L", "#B", kNone, "P", kNone, "!%H S L 2"}, Few(4, 32, 0, 8)},
      {{"B T Y", "%H S L 5", "H S L", "#B", kNone, "!P", kNone, kNone, "!%9 X", "!@9 4"},
       Few(8, 256, 0)}};
}

// The last inputs, a table and a layout of blocks, are absent unless they are named.
Layouts WithoutTables(Layouts layouts) {
  for (Layout& layout : layouts) layout.inputs.resize(10, kNone);
  return layouts;
}

Layouts RopeLayouts() {
  const Layouts all = {{{"B H T G", "T F", "T F", "#B T", "F", "#B"}},
                       {{"B H T G", "S F", "S F", "#B T", "F", "#"}},
                       {{"B T G", "T F", "T F", "#T", "F", "#B 1"}},
                       {{"B H T D", "T F", "T F", "#1", "1", "#1"}},
                       {{"B H T G", "B 1 T F", "B 1 T F", "#T", "F", "#1"}}};
  Layouts whole = all;
  for (Layout& layout : whole) layout.ints["dims"] = 0;
  return whole;
}

}  // namespace

const Layouts& LayoutsOf(const std::string& op) {
  static const std::map<std::string, Layouts> all = {
      {"add_bias", {{{"B T D", "D"}}, {{"D", "D"}}, {{"B H T D", "D"}}}},
      {"add_low_rank",
       {{{"B T D", "B T E", "B E F", "B F D"}},
        {{"B T D", "B T E", "1 E F", "1 F D"}},
        {{"B H T D", "B H T E", "E F", "B H F D"}},
        {{"T D", "T E", "E F", "F D"}}}},
      // Parts of all ranks; groups of processes are in tests/custom_ops/test_collectives.py.
      {"all_gather",
       {{{"2 T D"}, {{"ranks", 2}, {"rank", 0}}}, {{"3 B T D"}, {{"ranks", 3}, {"rank", 0}}}}},
      {"all_reduce",
       {{{"2 T D"}, {{"ranks", 2}, {"rank", 0}}}, {{"3 B T D"}, {{"ranks", 3}, {"rank", 0}}}}},
      {"scaled_dot_product_attention", AttentionLayouts()},
      {"scaled_dot_product_attention_bshd", BshdAttentionLayouts()},
      {"attention_nbits",
       {{{"B H T D", "%B H S D", "B H S 1", "%B H S E", "B H S 1"}, {{"bits", 8}}},
        {{"B W T G", "%B V S F", "B V S 1", "%B V S F", "B V S 1", "S", "W"}, {{"bits", 4}}}}},
      {"paged_attention",
       {{{"B W T D", "N 4 V D", "N 4 V E", "#B A", "B 1 T Z", "W"}},
        {{"B W T D", "N 1 V D", "N 1 V D", "#B S", "T S", "W"}}}},
      {"paged_attention_nbits",
       {{{"B W T D", "%N 4 V D", "N 4 V 1", "%N 4 V E", "N 4 V 1", "#B A", "B 1 T Z", "W"},
         {{"bits", 8}}},
        {{"B W T G", "%N 1 V F", "N 1 V 1", "%N 1 V F", "N 1 V 1", "#B S", "T S", "W"},
         {{"bits", 4}}}}},
      {"gated_delta_update",
       {{{"B H T D", "B H T D", "B H T E", "B H T", "B H T", "B H D E"}},
        {{"B V T D", "B V T D", "B W T E", "B W T", "B W T", "B W D E"}}}},
      {"gather_mm", GatherMmLayouts()},
      {"gather_mm_nbits", WithoutTables(GatherMmNbitsLayouts())},
      {"linear_nbits", WithoutTables(LinearNbitsLayouts())},
      {"rope", RopeLayouts()},
      {"group_norm", {{{"B W S T", "W", "W"}}, {{"B W", "W", "W"}}, {{"B W T", "W", "W"}}}},
      {"convolution",
       {{{"B S T D", "E S 3 2", "E", kNone}, {{"groups", 1}}},
        {{"B D T S", "E D 1 1", "E", kNone}, {{"groups", 1}}},
        {{"B 6 T D", "4 3 1 3", "4", kNone}, {{"groups", 2}}},
        {{"B 3 T D", "6 1 3 3", "6", kNone}, {{"groups", 3}}}}},
      {"softmax", {{{"B T D"}}, {{"D"}}, {{"B H T S"}}}},
      {"kv_cache_update", {{{"B H S D", "B H T D", "#B"}}, {{"B H S D", "B H 1 D", "#"}}}},
      {"skip_rms_norm", {{{"B T D", "B T D", "D"}}, {{"B T D", "B T D", "T 1"}}}},
      {"skip_layer_norm", {{{"B T D", "B T D", "D", "D"}}, {{"T D", "T D", "D", "1"}}}},
      {"rms_norm", {{{"B T D", "D"}}, {{"B H T D", "H 1 D"}}, {{"T D", "1"}}}},
      {"layer_norm", {{{"B T D", "D", "D"}}, {{"B H T D", "H 1 D", "T D"}}, {{"T D", "1", "D"}}}},
  };
  static const Layouts unary = {{{"B T D", "B T D"}},
                                {{"T D", "T D"}},
                                {{"D", "D"}},
                                {{"", ""}},
                                {{"B H T D E", "B H T D E"}}};
  const auto found = all.find(op.substr(0, op.find('.')));
  return found == all.end() ? unary : found->second;
}

}  // namespace coreai::fuzz
