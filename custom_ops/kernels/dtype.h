#pragma once

#include <cstddef>
#include <cstdint>

namespace coreai {

/// Element types for which the kernels are compiled; tables are indexed in this order.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };
inline constexpr std::size_t kDTypeCount = 4;

/// The compute type of a kernel.
constexpr DType WideDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

constexpr std::size_t SizeOf(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace coreai
