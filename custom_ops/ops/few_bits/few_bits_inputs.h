#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/few_bits/blocks.h"
#include "kernels/few_bits/few_bits.h"
#include "memory/packed_file.h"
#include "ops/checks.h"

namespace coreai {

/// The inputs of a few-bit weight as a node has them, checked.
struct FewBitsInputs {
  TensorView codes;     ///< [columns, groups, group * bits / 8], or [columns, blocks, bytes]
  TensorView scales;    ///< [columns, groups], or [columns, blocks]
  TensorView zeros;     ///< [columns, groups] or absent
  TensorView palette;   ///< [2 ** bits] or absent
  TensorView minimums;  ///< the shape of scales, or absent
  TensorView
      scale_codes;    ///< [columns, blocks, bytes] or absent; scales are [columns, blocks] then
  TensorView table;   ///< [rows, width] or absent: codes are in blocks
  TensorView layout;  ///< [numbers, 1 + 3 * fields] with a table: see BlockCodes
  std::size_t bits = 0;
  std::size_t group = 0;
  std::size_t scale_bits = 0;  ///< 0 without scale_codes

  std::size_t columns() const { return static_cast<std::size_t>(codes.shape[0]); }
  std::size_t groups() const { return static_cast<std::size_t>(codes.shape[1]) * groups_of_row(); }
  /// Groups of a row of bytes of the codes.
  std::size_t groups_of_row() const { return table ? kBlockValues / group : 1; }
  std::size_t depth() const { return groups() * group; }

  /// Reads the parts from the inputs of a node: codes and scales are inputs 1 and 2, zero points
  /// and palette those from `zero_points` on, minimums and codes of scales those from
  /// `first_minimums` on.
  void Read(const std::function<TensorView(std::size_t)>& input, std::size_t zero_points,
            std::size_t first_minimums);

  /// Whether there are codes and scales, and the table of codes that are blocks.
  bool IsComplete() const;

  /// Throws OpError if types, shapes or the layout of blocks are invalid.
  void Check(const Checker& check) const;

  /// Throws OpError if an input is there without another one that it needs, or with one that it
  /// excludes.
  void CheckPresence(const Checker& check) const;

  /// Whether both have the same tensors, in the same memory.
  bool SameMemory(const FewBitsInputs& other) const;

  /// Scale, and minimum or 0, of a group.
  struct Levels {
    double scale, minimum;
  };
  Levels LevelsOf(std::size_t column, std::size_t g) const;

  /// By which scale and minimum of the block of a group are multiplied: integers, 1 with one level.
  Levels FactorsOf(std::size_t column, std::size_t g) const;

  /// Groups with the same scale of the first level.
  std::size_t groups_of_block() const;

  /// The zero point of all groups, if there is no input with zero points.
  unsigned middle() const { return minimums ? 0 : 1u << (bits - 1); }

  /// The part of a weight with some of its columns.
  FewBitsInputs Columns(std::size_t first, std::size_t count) const;

  /// Element (column, k) of the weight.
  double Value(std::size_t column, std::size_t k) const;

  /// The table and the layout of blocks.
  BlockCodes blocks() const;

 private:
  void CheckBlocks(const Checker& check) const;
  void CheckScales(const Checker& check) const;
  /// The row of bytes of the codes that has a group.
  const std::uint8_t* RowOf(std::size_t column, std::size_t g) const;
};

/// Throws OpError if an input is there and has another shape.
void RequireShape(const Checker& check, const char* name, const TensorView& input,
                  const Shape& expected);

/// The parts besides the codes that each row has its own of.
inline constexpr TensorView FewBitsInputs::* kPartsOfRows[] = {
    &FewBitsInputs::scales, &FewBitsInputs::zeros, &FewBitsInputs::minimums,
    &FewBitsInputs::scale_codes};

/// Bytes of an element of codes, scales or any other part.
std::size_t ElementBytes(ONNXTensorElementDataType type);

/// Element `index` of zero points: uint8, or of a floating-point type.
double ZeroPoint(const TensorView& zeros, std::size_t index);

/// A weight packed for the kernels.
class PackedFewBits {
 public:
  PackedFewBits() = default;
  /// Packs inputs that runs read again.
  explicit PackedFewBits(const FewBitsInputs& inputs) : PackedFewBits(inputs, nullptr, false) {}
  /// Packs constants of a node, or finds them in the file of its session. Their pages in a mapped
  /// file leave the memory of the process, since runs do not read them.
  PackedFewBits(const FewBitsInputs& inputs, const KernelInfo& info)
      : PackedFewBits(inputs, PackedFile::Open(info.packed_weights()), true) {}

  const FewBitsWeight& weight() const { return weight_; }

 private:
  PackedFewBits(const FewBitsInputs& inputs, std::shared_ptr<PackedFile> file, bool is_constant);

  FewBitsWeight weight_ = {};
  PackedMemory memory_;
  std::vector<float> palette_;
};

}  // namespace coreai
