// Products of four unsigned with four signed bytes, added to a lane of 32 bits: VNNI's VPDPBUSD, or
// sequences of other instructions. Included once per target.

#include "hwy/highway.h"

// Assemblers know AVX-VNNI since binutils 2.36.
#if HWY_COMPILER_CLANG || HWY_COMPILER_GCC_ACTUAL >= 1100
#define COREAI_HAVE_AVX_VNNI 1
#else
#define COREAI_HAVE_AVX_VNNI 0
#endif

#if defined(COREAI_SIMD_QUAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_QUAD_INL_H_
#undef COREAI_SIMD_QUAD_INL_H_
#else
#define COREAI_SIMD_QUAD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Part `part` of each byte as a byte: a byte has 8 / kBits parts, the first in its low bits.
template <size_t kBits>
HWY_INLINE hn::Vec<hn::ScalableTag<uint32_t>> QuadsOf(hn::Vec<hn::ScalableTag<uint32_t>> bytes,
                                                      int part) {
  if constexpr (kBits == 8) {
    return bytes;
  } else {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
    return hn::And(hn::ShiftRightSame(bytes, part * static_cast<int>(kBits)),
                   hn::Set(hn::ScalableTag<uint32_t>(), kMask));
  }
}

/// Four bytes in every lane.
HWY_INLINE hn::Vec<hn::ScalableTag<int32_t>> BroadcastQuad(const int8_t* HWY_RESTRICT p) {
  int32_t quad;
  hwy::CopyBytes<4>(p, &quad);
  return hn::Set(hn::ScalableTag<int32_t>(), quad);
}

/// Whether the target has a version for CPUs with VPDPBUSD, which it does not require.
#if HWY_TARGET == HWY_AVX3 || (HWY_TARGET == HWY_AVX2 && COREAI_HAVE_AVX_VNNI)
inline constexpr bool kHasVnniVersion = true;
#else
inline constexpr bool kHasVnniVersion = false;
#endif

/// sum + the products of the unsigned bytes of `a` and the signed bytes of `b` in each lane, exact.
/// With kVnni the CPU must have VPDPBUSD (CpuHasVnni).
template <bool kVnni>
HWY_INLINE hn::Vec<hn::ScalableTag<int32_t>> AddQuads(hn::Vec<hn::ScalableTag<uint32_t>> a,
                                                      hn::Vec<hn::ScalableTag<int32_t>> b,
                                                      hn::Vec<hn::ScalableTag<int32_t>> sum) {
  const hn::ScalableTag<int32_t> d;
  // In assembly, since the compiler is not told that the target has the instruction.
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
#elif HWY_TARGET == HWY_AVX2 && COREAI_HAVE_AVX_VNNI
  if constexpr (kVnni) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
    return sum;
  }
#endif
#if HWY_TARGET == HWY_SCALAR
  const uint32_t unsigned_bytes = hn::GetLane(a);
  const auto signed_bytes = static_cast<uint32_t>(hn::GetLane(b));
  int32_t total = hn::GetLane(sum);
  for (int i = 0; i < 4; ++i) {
    const auto left = static_cast<int32_t>(unsigned_bytes >> (8 * i) & 255u);
    total += left * static_cast<int8_t>(signed_bytes >> (8 * i) & 255u);
  }
  return hn::Set(d, total);
#else
  const hn::Repartition<uint8_t, decltype(d)> du8;
  const hn::Repartition<int8_t, decltype(d)> di8;
  return hn::SumOfMulQuadAccumulate(d, hn::BitCast(du8, a), hn::BitCast(di8, b), sum);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
