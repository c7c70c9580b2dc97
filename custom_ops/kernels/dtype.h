#pragma once

#include <cstddef>
#include <cstdint>

namespace coreai {

/// Element types the kernels are compiled for; the order indexes their tables.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };
inline constexpr std::size_t kDTypeCount = 4;

/// Type that a kernel computes in.
constexpr DType WideDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

constexpr std::size_t SizeOf(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace coreai
