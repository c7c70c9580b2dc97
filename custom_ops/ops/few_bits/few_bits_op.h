#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/gather_mm/widen.h"
#include "ops/few_bits/few_bits_inputs.h"
#include "ops/few_bits/few_bits_product.h"

namespace coreai {

/// What the ops with few-bit weights have in common: their attributes, and the product that these
/// select.
class FewBitsOp {
 public:
  /// Throws OpError if an attribute is invalid.
  FewBitsOp(const KernelInfo& info, const Checker& check, DType dtype, Target target);

  /// Inputs with the attributes of the node and without tensors.
  const FewBitsInputs& attributes() const { return attributes_; }

  /// Whether rows must go through Prepare before Multiply.
  bool NeedsPreparation(bool has_palette) const {
    return WideDType(dtype_) != dtype_ || RoundsValues(has_palette);
  }

  /// Converts groups of the op's type to the compute type, rounded if the product does not do that.
  void Prepare(const void* from, std::size_t groups, bool has_palette, void* to) const;

  /// Multiplies rows. `packed` is the weight of `inputs`, or null if it has not been packed.
  void Multiply(const KernelContext& context, const FewBitsInputs& inputs,
                const PackedFewBits* packed, const FewBitsCall& call) const;

 private:
  void MultiplyPacked(const KernelContext& context, const FewBitsWeight& weight, bool has_palette,
                      const FewBitsCall& call) const;
  /// Whether the product multiplies integers.
  bool MultipliesIntegers(bool has_palette) const;
  /// Numbers of bfloat16 whose sum an element of a row is.
  std::size_t PartsOfRows(bool has_palette) const;
  bool RoundsValues(bool has_palette) const { return rounds_ && !MultipliesIntegers(has_palette); }

  DType dtype_;
  FewBitsInputs attributes_;
  bool rounds_;
  WidenKernel widen_;
  FewBitsProduct product_;
};

}  // namespace coreai
