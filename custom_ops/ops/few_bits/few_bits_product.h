#pragma once

#include <cstddef>

#include "kernels/few_bits/few_bits.h"
#include "kernels/gather_mm/gather_mm.h"
#include "ops/few_bits/few_bits_inputs.h"
#include "ops/item_pool.h"

namespace coreai {

/// Rows in the compute type, and the output that they and a weight give.
struct FewBitsCall {
  const void* left;     ///< [rows, depth] in the compute type
  std::size_t rows;     ///< at least 1
  std::size_t columns;  ///< at least 1
  const void* bias;     ///< [columns] in the compute type, or null
  char* output;         ///< [rows, columns] in the op's type
};

/// Multiplies rows by a few-bit weight on onnxruntime's threads.
class FewBitsProduct {
 public:
  /// `deterministic` products sum each row in one order, whatever the number of rows.
  FewBitsProduct(DType dtype, Target target, bool deterministic);

  /// Rows of float, each the sum of `parts` numbers of bfloat16 (FewBitsSplitKernel).
  void Multiply(const KernelContext& context, const FewBitsWeight& weight, std::size_t parts,
                const FewBitsCall& call) const;

  /// Rows of float that are rounded to 8 bits in groups; the weight has no palette.
  void MultiplyRounded(const KernelContext& context, const FewBitsWeight& weight,
                       const FewBitsCall& call) const;

  /// Rows of double, by a weight that is not packed.
  void MultiplyDouble(const KernelContext& context, const FewBitsInputs& inputs,
                      const FewBitsCall& call) const;

 private:
  struct RowParts;

  void MultiplySmallBatch(const KernelContext& context, const FewBitsWeight& weight,
                          const FewBitsCall& call) const;
  void MultiplyLargeBatch(const KernelContext& context, const FewBitsWeight& weight,
                          const FewBitsCall& call) const;
  bool UsesTiles(const FewBitsWeight& weight, std::size_t rows) const;
  std::size_t PairedRows(const FewBitsWeight& weight, std::size_t rows) const;
  void MultiplyParts(const KernelContext& context, const FewBitsWeight& weight, std::size_t parts,
                     const FewBitsCall& call) const;
  template <class Body>
  void RunStrips(const KernelContext& context, const FewBitsWeight& weight, const FewBitsCall& call,
                 const float* group_sums, std::size_t most, const Body& body) const;
  template <typename W>
  ScratchMemory PackLeft(const KernelContext& context, const RowParts& parts, std::size_t depth,
                         const FewBitsCall& call) const;
  template <typename W>
  void Finish(const FewBitsCall& call, std::size_t row, std::size_t first, std::size_t count,
              const W* sums) const;

  DType dtype_;
  bool deterministic_;
  FewBitsSmallBatchKernel small_batch_;
  FewBitsLargeBatchKernel large_batch_;
  FewBitsMinimumsKernel minimums_;
  RoundedKernel rounded_;
  RoundKernel round_;
  RoundPairsKernel round_pairs_;
  FewBitsPartsKernel multiply_parts_;
  FewBitsSplitKernel split_;
  FinishKernel finish_;
  GatherMmKernel multiply_;
  GatherMmPackLeftKernel pack_left_;
};

}  // namespace coreai
