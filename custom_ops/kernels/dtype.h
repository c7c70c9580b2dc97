#pragma once

#include <cstddef>
#include <cstdint>

namespace coreai {

/// Element types for which the kernels are compiled; tables are indexed in this order.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };
inline constexpr std::size_t kDTypeCount = 4;

/// The name of a dtype in torch and in op types.
constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "float64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// The compute type of a kernel.
constexpr DType WideDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

constexpr std::size_t SizeOf(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace coreai
