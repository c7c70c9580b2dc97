#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "simd/target.h"

namespace coreai::testing {

inline const std::vector<DType>& AllDTypes() {
  static const std::vector<DType> all = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                         DType::kFloat64};
  return all;
}

inline std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  for (std::size_t i = 0; i < kTargetCount; ++i) {
    if (TargetIsSupported(static_cast<Target>(i))) targets.push_back(static_cast<Target>(i));
  }
  return targets;
}

/// Fraction bits and largest exponent of an element type.
struct Format {
  int fraction;
  int max_exponent;
};

inline Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {10, 15};
    case DType::kBFloat16:
      return {7, 127};
    case DType::kFloat32:
      return {23, 127};
    default:
      return {52, 1023};
  }
}

/// The number of that type nearest to x, ties to even.
inline double Quantize(double x, DType dtype) {
  if (x == 0 || !std::isfinite(x) || dtype == DType::kFloat64) return x;
  const Format f = FormatOf(dtype);
  const int exponent = std::max(std::ilogb(x), 1 - f.max_exponent);
  const double step = std::ldexp(1.0, exponent - f.fraction);
  const double rounded = std::nearbyint(x / step) * step;
  const double largest = std::ldexp(2 - std::ldexp(1.0, -f.fraction), f.max_exponent);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

/// Bits of a number that Quantize returned, for the 16-bit types.
inline std::uint16_t Bits16(double x, DType dtype) {
  const Format f = FormatOf(dtype);
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const int all_ones = (2 * f.max_exponent + 1) << f.fraction;
  if (std::isnan(x)) return static_cast<std::uint16_t>(all_ones | 1 << (f.fraction - 1));
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | all_ones);
  const double magnitude = std::fabs(x);
  const int least = 1 - f.max_exponent;
  const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
  const int scaled = static_cast<int>(std::ldexp(magnitude, f.fraction - exponent));
  // The hidden bit of a normal number carries into the exponent field.
  return static_cast<std::uint16_t>(sign | (((exponent - least) << f.fraction) + scaled));
}

inline double FromBits16(std::uint16_t bits, DType dtype) {
  const Format f = FormatOf(dtype);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int field = (bits & 0x7FFF) >> f.fraction;
  const int fraction = bits & ((1 << f.fraction) - 1);
  if (field == 2 * f.max_exponent + 1) return fraction == 0 ? sign * INFINITY : NAN;
  const int hidden = field == 0 ? 0 : 1 << f.fraction;
  return sign * std::ldexp(hidden + fraction, std::max(field, 1) - f.max_exponent - f.fraction);
}

/// A tensor in memory that ends where its allocation ends, so that a sanitizer sees a read too far,
/// and begins `shift` elements after an address aligned to 64.
class Tensor {
 public:
  Tensor(DType dtype, std::size_t count, std::size_t shift = 0)
      : dtype_(dtype),
        count_(count),
        skip_(shift * SizeOf(dtype)),
        memory_(static_cast<char*>(
            ::operator new(skip_ + count * SizeOf(dtype), std::align_val_t{64}))) {
    std::memset(memory_.get(), 0xA5, skip_ + count * SizeOf(dtype));
  }

  Tensor(DType dtype, const std::vector<double>& values, std::size_t shift = 0)
      : Tensor(dtype, values.size(), shift) {
    for (std::size_t i = 0; i < values.size(); ++i) Set(i, values[i]);
  }

  void* data() const { return memory_.get() + skip_; }
  std::size_t size() const { return count_; }

  double operator[](std::size_t i) const {
    const char* p = static_cast<const char*>(data()) + i * SizeOf(dtype_);
    if (dtype_ == DType::kFloat32) return Read<float>(p);
    if (dtype_ == DType::kFloat64) return Read<double>(p);
    return FromBits16(Read<std::uint16_t>(p), dtype_);
  }

  void Set(std::size_t i, double x) {
    char* p = static_cast<char*>(data()) + i * SizeOf(dtype_);
    if (dtype_ == DType::kFloat32) {
      Write(p, static_cast<float>(x));
    } else if (dtype_ == DType::kFloat64) {
      Write(p, x);
    } else {
      Write(p, Bits16(Quantize(x, dtype_), dtype_));
    }
  }

  std::vector<double> Values() const {
    std::vector<double> values(count_);
    for (std::size_t i = 0; i < count_; ++i) values[i] = (*this)[i];
    return values;
  }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  template <typename E>
  static E Read(const char* p) {
    E value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  template <typename E>
  static void Write(char* p, E value) {
    std::memcpy(p, &value, sizeof(value));
  }

  DType dtype_;
  std::size_t count_;
  std::size_t skip_;
  std::unique_ptr<char, Free> memory_;
};

inline std::vector<double> Normal(std::size_t count, unsigned seed, double mean = 0,
                                  double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> draw(mean, deviation);
  std::vector<double> values(count);
  for (double& value : values) value = draw(generator);
  return values;
}

/// Tolerances of tests/support/tolerances.py, tighter for float64, whose kernels compute in double.
inline double RelativeTolerance(DType dtype) {
  static const double kTolerance[] = {1.3e-6, 1e-3, 1.6e-2, 1e-12};
  return kTolerance[static_cast<std::size_t>(dtype)];
}
inline double AbsoluteTolerance(DType dtype) { return dtype == DType::kFloat64 ? 1e-12 : 1e-5; }

/// Fails unless every element is near its reference, NaN and infinities exactly in place.
inline void ExpectNear(const Tensor& got, const std::vector<double>& want, DType dtype) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double expected = Quantize(want[i], dtype);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got[i])) << "element " << i << " is " << got[i] << ", not NaN";
    } else if (std::isinf(expected)) {
      ASSERT_EQ(got[i], expected) << "element " << i;
    } else {
      const double allowed =
          AbsoluteTolerance(dtype) + RelativeTolerance(dtype) * std::fabs(expected);
      ASSERT_NEAR(got[i], expected, allowed) << "element " << i;
    }
  }
}

}  // namespace coreai::testing
