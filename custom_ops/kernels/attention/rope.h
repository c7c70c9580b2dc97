#pragma once

#include <cstddef>

#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai {

/// Rows to rotate, the same table for every head. Pointers need only the alignment of their
/// element. Output is input, or overlaps nothing.
struct RopeRows {
  const void* input;        ///< [heads, rows, head_dim] of the kernel's type
  const void* cos;          ///< [rows, half] of that type or, `wide_table`, of the compute type
  const void* sin;          ///< like cos
  void* output;             ///< like input
  std::size_t heads;        ///<
  std::size_t rows;         ///<
  std::size_t head_dim;     ///< at least 2 * half; the lanes after that are copied
  std::size_t half;         ///< pairs of lanes in a row
  std::size_t head_stride;  ///< elements of input and output from head to head
  std::size_t cos_stride;   ///< elements from row to row, 0 if all are the same
  std::size_t sin_stride;   ///< like cos_stride
};

using RopeKernel = void (*)(const RopeRows&);

/// output = (cos a - sin b, sin a + cos b) for each pair (a, b) of lanes, which are adjacent if
/// `interleaved` and else `half` apart; computed in float (double for float64), rounded once.
RopeKernel FindRope(Target target, DType dtype, bool wide_table, bool interleaved);

/// Rows of a table of angles. All pointers are to the compute type.
struct RopeAngles {
  const void* positions;    ///< [rows]
  const void* frequencies;  ///< [half]
  void* cos;                ///< [rows, half]
  void* sin;                ///< [rows, half]
  std::size_t rows;
  std::size_t half;
};

using RopeAnglesKernel = void (*)(const RopeAngles&);

/// Cosine and sine of position * frequency, the product rounded to the compute type. No product
/// may exceed kMaxSinCosArgument (simd/sincos.h) in magnitude. `wide` is float32 or float64.
RopeAnglesKernel FindRopeAngles(Target target, DType wide);

}  // namespace coreai
