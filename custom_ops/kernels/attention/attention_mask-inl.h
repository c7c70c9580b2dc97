// The mask of an item of attention. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_MASK_INL_H_
#undef COREAI_KERNELS_ATTENTION_MASK_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_MASK_INL_H_
#endif

#include "kernels/attention/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <typename W>
HWY_INLINE W MaskValue(hwy::float16_t x) {
  return static_cast<W>(hwy::F32FromF16(x));
}
template <typename W>
HWY_INLINE W MaskValue(hwy::bfloat16_t x) {
  return static_cast<W>(hwy::F32FromBF16(x));
}
template <typename W>
HWY_INLINE W MaskValue(float x) {
  return static_cast<W>(x);
}
template <typename W>
HWY_INLINE W MaskValue(double x) {
  return static_cast<W>(x);
}
template <typename W>
HWY_INLINE W MaskValue(std::uint8_t attend) {
  return attend != 0 ? W{0} : static_cast<W>(-__builtin_huge_val());
}

template <typename M, typename W>
void CopyMask(const M* mask, size_t mask_stride, size_t count, W* out, size_t out_stride) {
  for (size_t k = 0; k < count; ++k) out[k * out_stride] = MaskValue<W>(mask[k * mask_stride]);
}

/// Writes the addends of scores [key, key + count) of one row: 0 and -inf for a bool mask.
template <typename T, typename W>
void FillBias(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row, size_t key,
              size_t count, W* out, size_t out_stride) {
  const AttentionMask& m = a.mask;
  const size_t at = s.mask_at[row] + key * m.key_stride;
  if (m.kind == MaskKind::kBool) {
    CopyMask(static_cast<const std::uint8_t*>(m.data) + at, m.key_stride, count, out, out_stride);
  } else if (m.kind == MaskKind::kOwn) {
    CopyMask(static_cast<const T*>(m.data) + at, m.key_stride, count, out, out_stride);
  } else {
    CopyMask(static_cast<const W*>(m.data) + at, m.key_stride, count, out, out_stride);
  }
}

/// The byte of a bool mask for a row and a key.
template <typename W>
const std::uint8_t* MaskLine(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row,
                             size_t key) {
  return static_cast<const std::uint8_t*>(a.mask.data) + s.mask_at[row] + key * a.mask.key_stride;
}

/// Prefetches a bool mask for keys [key, key + count) of one row.
template <typename W>
HWY_INLINE void PrefetchMask(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row,
                             size_t key, size_t count) {
  const std::uint8_t* line = MaskLine(a, s, row, key);
  for (size_t k = 0; k < count * a.mask.key_stride; k += 64) __builtin_prefetch(line + k);
}

/// Whether `count` rows from `row` on have the same mask.
template <typename W>
bool OneMaskRow(const AttentionScratch<W>& s, size_t row, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    if (s.mask_at[row + i] != s.mask_at[row]) return false;
  }
  return true;
}

/// Whether a row attends to any of some keys, and whether to all of them.
struct Attends {
  bool any;
  bool all;
};

/// Evaluates a bool mask for keys [key, key + count) of one row.
template <typename W>
Attends MaskAttends(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row, size_t key,
                    size_t count) {
  const std::uint8_t* line = MaskLine(a, s, row, key);
  if (a.mask.key_stride == 0) return {*line != 0, *line != 0};
  const hn::ScalableTag<std::uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  Attends attends = {false, true};
  for (size_t k = 0; k < count; k += lanes) {
    const size_t n = HWY_MIN(lanes, count - k);
    const auto bytes = n == lanes ? hn::LoadU(d, line + k) : hn::LoadN(d, line + k, n);
    const size_t hidden = hn::CountTrue(d, hn::Eq(bytes, zero));
    attends.any = attends.any || hidden < lanes;  // lanes from n on are counted as hidden
    attends.all = attends.all && hidden == lanes - n;
  }
  return attends;
}

/// Reads the first `n` of eight bytes; 1 for each nonzero byte.
HWY_INLINE std::uint64_t NonZeroBytes(const std::uint8_t* bytes, size_t n) {
  std::uint64_t x = 0;
  if (n >= 8) {
    hwy::CopyBytes<8>(bytes, &x);
  } else {
    for (size_t i = 0; i < n; ++i) x |= std::uint64_t{bytes[i]} << (8 * i);
  }
  constexpr std::uint64_t kLow = 0x7F7F7F7F7F7F7F7Full;
  return ((((x & kLow) + kLow) | x) & ~kLow) >> 7;
}

/// Sets bit i of attends[k] if row `row + i` attends to key `key + k` by a bool mask. Processes
/// eight rows and eight keys at a time: one byte per key, into which each row's bit is shifted.
template <typename W>
void FillBits(const AttentionProblem& a, const AttentionScratch<W>& s, size_t row, size_t count,
              size_t key, size_t keys) {
  std::uint64_t* HWY_RESTRICT attends = s.attends;
  const AttentionMask& m = a.mask;
  const bool shared = OneMaskRow(s, row, count);
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - count);
  for (size_t k = 0; k < keys; ++k) attends[k] = 0;
  for (size_t i = 0; i < (shared ? 1 : count); i += 8) {
    const std::uint8_t* line[8];
    const size_t lines = shared ? 1 : HWY_MIN(count - i, size_t{8});
    for (size_t j = 0; j < lines; ++j) line[j] = MaskLine(a, s, row + i + j, key);
    for (size_t k = 0; k < keys; k += 8) {
      const size_t n = HWY_MIN(keys - k, size_t{8});
      std::uint64_t bits = 0;
      for (size_t j = 0; j < lines; ++j) {
        const std::uint64_t one_key = *line[j] != 0 ? 0x0101010101010101ull : 0;
        bits |= (m.key_stride == 0 ? one_key : NonZeroBytes(line[j] + k, n)) << j;
      }
      for (size_t j = 0; j < n; ++j, bits >>= 8) {
        const std::uint64_t byte = bits & 0xFF;
        attends[k + j] |= shared ? (byte != 0 ? all : 0) : byte << i;
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
