#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace coreai {

namespace bits {

inline float FloatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t Of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace bits

/// A number in IEEE 754 binary16. It converts from and to float; compute in float. Conversions have
/// no branches, so that compilers vectorize loops over them.
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  /// Rounds to nearest, ties to even; beyond 65504 to infinity.
  explicit Half(float value) {
    const std::uint32_t wide = bits::Of(value);
    const std::uint32_t sign = wide >> 16 & 0x8000u;
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    // The exponent loses 112, and the mantissa 13 bits: half of the last one is added, less 1 if
    // the number is even.
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    // The last bit of 0.5f is 2^-24, as that of a subnormal binary16, so that the sum rounds.
    const std::uint32_t subnormal = bits::Of(bits::FloatOf(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    bits = static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
  }

  operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    // 2^112 moves the exponent from the bias of binary16 to that of binary32, subnormals included.
    const float finite = bits::FloatOf(magnitude << 13) * bits::FloatOf(0x77800000u);
    const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    return bits::FloatOf(sign | special | bits::Of(finite));
  }
};

/// A number in bfloat16: the upper half of a float. It converts from and to float.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  /// Rounds to nearest, ties to even.
  explicit BFloat16(float value) {
    const std::uint32_t wide = bits::Of(value);
    const std::uint32_t rounded = (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16;
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? wide >> 16 | 0x40u : rounded);
  }

  operator float() const { return bits::FloatOf(static_cast<std::uint32_t>(bits) << 16); }
};

static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2, "tensors hold them without padding");

/// The type to compute in: double for double, float for the other floating-point types.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace coreai
