#pragma once

#include <vector>

#include "kernels/gather_mm/gather_mm.h"
#include "kernels/gather_mm/gather_mm_parts.h"
#include "memory/huge_page_pool.h"
#include "memory/packed_file.h"
#include "ort/kernel_context.h"
#include "ort/kernel_info.h"

namespace coreai {

/// The matrices of a constant input, packed for gather_mm. They need as much memory as the input,
/// with columns rounded up to 16. onnxruntime keeps the input too, but what is mapped from a file
/// does not stay in memory. If COREAI_OPS_PACK_WEIGHTS=0 is in
/// the environment when the session is created, nothing is packed.
class PackedConstant {
 public:
  PackedConstant() = default;
  /// `input` is [..., depth, columns], or [..., columns, depth] if `transposed`. Nothing is packed
  /// if it is absent (not constant), or if its type or rank is invalid.
  PackedConstant(const KernelInfo& info, const TensorView& input, bool transposed, DType dtype,
                 Target target);

  /// The packed matrices if `data` points to the constant's matrices, else null.
  const void* Find(const void* data) const { return data == original_ ? packed_.get() : nullptr; }

 private:
  const void* original_ = nullptr;
  PackedMemory packed_;
};

/// The same as parts of bfloat16 for tiles, which need one and a half times the memory of the
/// input.
class PackedParts {
 public:
  PackedParts() = default;
  /// Nothing is packed in the cases of PackedConstant, or if tiles cannot multiply a matrix.
  PackedParts(const TensorView& input, bool transposed, const GatherMmOfParts& kernels);

  /// Whether `data` points to the constant's matrices, and they are packed.
  bool Has(const void* data) const { return packed_ != nullptr && data == original_; }

  const void* Matrix(std::size_t i) const { return packed_.get() + i * bytes_; }
  const PartsRange& ExactRows(std::size_t i) const { return exact_rows_[i]; }

 private:
  const void* original_ = nullptr;
  std::size_t bytes_ = 0;  // of a matrix
  std::vector<PartsRange> exact_rows_;
  HugePageMemory packed_;
};

}  // namespace coreai
