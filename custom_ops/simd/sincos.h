#pragma once

namespace coreai {

/// Largest magnitude that SinCos (simd/sincos-inl.h) reduces exactly.
inline constexpr double kMaxSinCosArgument = 33554432.0;  // 2^25

}  // namespace coreai
