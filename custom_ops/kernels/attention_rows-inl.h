// Which rows an item of attention has, which keys they attend to, and their mask. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#undef COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#endif

#include "kernels/attention_tiles.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// The rows of one item. Row r of a group is query r % queries of the group's head r / queries, so
/// a group's rows lie one after the other in memory.
template <typename T>
struct AttentionRows {
  size_t batch;
  size_t first_head;  // of the group
  size_t first;       // row within the group
  size_t count;
  const T* query;
  const T* key;
  const T* value;
  T* output;

  AttentionRows(const AttentionProblem& a, size_t item) {
    const size_t group = AttentionGroup(a);
    const size_t group_rows = group * a.queries;
    const size_t tile_rows = AttentionTileRows(a);
    const size_t tiles = (group_rows + tile_rows - 1) / tile_rows;
    const size_t groups = a.heads / group;
    first = item % tiles * tile_rows;
    count = HWY_MIN(tile_rows, group_rows - first);
    first_head = item / tiles % groups * group;
    batch = item / tiles / groups;
    const size_t row = (batch * a.heads + first_head) * a.queries + first;
    const size_t key_head = first_head / (a.heads / a.key_heads);
    const size_t value_head = first_head / (a.heads / a.value_heads);
    query = static_cast<const T*>(a.query) + row * a.head_dim;
    output = static_cast<T*>(a.output) + row * a.value_dim;
    key = static_cast<const T*>(a.key) + (batch * a.key_heads + key_head) * a.keys * a.head_dim;
    value = static_cast<const T*>(a.value) +
            (batch * a.value_heads + value_head) * a.keys * a.value_dim;
  }

  size_t Head(const AttentionProblem& a, size_t row) const {
    return first_head + (first + row) / a.queries;
  }
  size_t Query(const AttentionProblem& a, size_t row) const { return (first + row) % a.queries; }
};

struct KeyRange {
  std::int64_t first;
  std::int64_t last;
};

/// Keys that query `query` may attend to by position.
inline KeyRange RangeOf(const AttentionProblem& a, size_t query) {
  const auto keys = static_cast<std::int64_t>(a.keys);
  KeyRange range = {0, keys};
  if (a.mask.kind != MaskKind::kNone) return range;
  const std::int64_t position = static_cast<std::int64_t>(query) + a.offset;
  if (a.window > 0) {
    range.first = HWY_MAX(range.first, position - a.window + 1);
    range.last = HWY_MIN(range.last, position + a.window);
  }
  if (a.causal) range.last = HWY_MIN(range.last, position + 1);
  range.first = HWY_MIN(range.first, keys);
  range.last = HWY_MAX(range.last, range.first);
  return range;
}

/// Sets the ranges of an item's rows and returns the one that holds them all.
template <typename T, typename W>
KeyRange SetRanges(const AttentionProblem& a, const AttentionRows<T>& rows,
                   const AttentionScratch<W>& s) {
  KeyRange all = {static_cast<std::int64_t>(a.keys), 0};
  for (size_t row = 0; row < rows.count; ++row) {
    const KeyRange range = RangeOf(a, rows.Query(a, row));
    s.first_key[row] = range.first;
    s.last_key[row] = range.last;
    if (range.first == range.last) continue;
    all.first = HWY_MIN(all.first, range.first);
    all.last = HWY_MAX(all.last, range.last);
  }
  return all;
}

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

/// Writes what the mask adds to scores [key, key + count) of one row: 0 and -inf for a bool mask.
template <typename T, typename W>
void FillBias(const AttentionProblem& a, const AttentionRows<T>& rows, size_t row, size_t key,
              size_t count, W* out, size_t out_stride) {
  const AttentionMask& m = a.mask;
  const size_t at = rows.batch * m.batch_stride + rows.Head(a, row) * m.head_stride +
                    rows.Query(a, row) * m.query_stride + key * m.key_stride;
  if (m.kind == MaskKind::kBool) {
    CopyMask(static_cast<const std::uint8_t*>(m.data) + at, m.key_stride, count, out, out_stride);
  } else if (m.kind == MaskKind::kOwn) {
    CopyMask(static_cast<const T*>(m.data) + at, m.key_stride, count, out, out_stride);
  } else {
    CopyMask(static_cast<const W*>(m.data) + at, m.key_stride, count, out, out_stride);
  }
}

/// Whether `count` rows from `row` on have the same mask.
template <typename T>
bool OneMaskRow(const AttentionProblem& a, const AttentionRows<T>& rows, size_t row, size_t count) {
  if (a.mask.query_stride != 0) return false;
  return a.mask.head_stride == 0 || rows.Head(a, row) == rows.Head(a, row + count - 1);
}

/// Eight bytes, the first `n` of which are read; 1 where one is not zero.
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

/// Sets bit i of attends[k] if row `row + i` attends to key `key + k`, by a bool mask. Eight rows
/// and eight keys at a time: a byte per key, into which each row's bit is shifted.
template <typename T>
void FillBits(const AttentionProblem& a, const AttentionRows<T>& rows, size_t row, size_t count,
              size_t key, size_t keys, std::uint32_t* HWY_RESTRICT attends) {
  const AttentionMask& m = a.mask;
  const bool shared = OneMaskRow(a, rows, row, count);
  const std::uint32_t all = ~std::uint32_t{0} >> (32 - count);
  for (size_t k = 0; k < keys; ++k) attends[k] = 0;
  for (size_t i = 0; i < (shared ? 1 : count); i += 8) {
    const std::uint8_t* line[8];
    const size_t lines = shared ? 1 : HWY_MIN(count - i, size_t{8});
    for (size_t j = 0; j < lines; ++j) {
      line[j] = static_cast<const std::uint8_t*>(m.data) + rows.batch * m.batch_stride +
                rows.Head(a, row + i + j) * m.head_stride +
                rows.Query(a, row + i + j) * m.query_stride + key * m.key_stride;
    }
    for (size_t k = 0; k < keys; k += 8) {
      const size_t n = HWY_MIN(keys - k, size_t{8});
      std::uint64_t bits = 0;
      for (size_t j = 0; j < lines; ++j) {
        const std::uint64_t one_key = *line[j] != 0 ? 0x0101010101010101ull : 0;
        bits |= (m.key_stride == 0 ? one_key : NonZeroBytes(line[j] + k, n)) << j;
      }
      for (size_t j = 0; j < n; ++j, bits >>= 8) {
        const auto byte = static_cast<std::uint32_t>(bits & 0xFF);
        attends[k + j] |= shared ? (byte != 0 ? all : 0) : byte << i;
      }
    }
  }
}

/// Starting values of a row's running maximum and sum: the sink, which counts in the sum, or
/// nothing.
template <typename T, typename W>
void StartSoftmax(const AttentionProblem& a, const AttentionRows<T>& rows, size_t row, W* best,
                  W* total) {
  const W nothing = static_cast<W>(-__builtin_huge_val());
  *best = nothing;
  *total = 0;
  if (a.sinks == nullptr) return;
  const W sink = static_cast<const W*>(a.sinks)[rows.Head(a, row)];
  *best = sink;
  // exp(sink - sink), which is NaN for a sink of inf or NaN.
  *total = sink == nothing ? W{0} : W{1} + (sink - sink);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
