// The rows of an item of attention, and the keys to which they attend by position. Included once
// per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#undef COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#else
#define COREAI_KERNELS_ATTENTION_ROWS_INL_H_
#endif

#include "kernels/attention/attention_tiles.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// The keys or values of a head, contiguous, between those of other heads, or in blocks.
template <typename T>
class AttentionTokens {
 public:
  /// `head` is one of `heads` of the batch row.
  AttentionTokens(const AttentionProblem& a, const void* all, size_t batch, size_t head,
                  size_t heads, size_t dim)
      : first_(static_cast<const T*>(all)), stride_(dim) {
    if (all == nullptr) return;
    if (a.blocks.table == nullptr && !a.bshd) {
      first_ += (batch * heads + head) * a.keys * dim;
      return;
    }
    if (a.bshd) {
      first_ += (batch * a.keys * heads + head) * dim;
      stride_ = heads * dim;
      contiguous_ = false;
      return;
    }
    first_ += head * dim;
    table_ = a.blocks.table + batch * a.blocks.stride;
    shift_ = a.blocks.shift;
    mask_ = (size_t{1} << shift_) - 1;
    stride_ = heads * dim;
    block_ = stride_ << shift_;
    contiguous_ = false;
  }

  /// Contiguous tokens.
  AttentionTokens(const T* first, size_t dim) : first_(first), stride_(dim) {}

  bool contiguous() const { return contiguous_; }

  HWY_INLINE const T* operator[](size_t token) const {
    return first_ + static_cast<size_t>(table_[token >> shift_]) * block_ +
           (token & mask_) * stride_;
  }

  size_t stride() const { return stride_; }

  /// The number of tokens from `token` to the end of its block, whose rows are `stride` apart.
  HWY_INLINE size_t Run(size_t token) const { return mask_ - (token & mask_) + 1; }

  /// The rows of consecutive tokens.
  template <size_t kCount>
  HWY_INLINE void Rows(size_t token, const T* (&rows)[kCount]) const {
    rows[0] = (*this)[token];
    const bool one_block = kCount - 1 <= mask_ - (token & mask_);
    for (size_t i = 1; i < kCount; ++i) {
      rows[i] = one_block ? rows[i - 1] + stride_ : (*this)[token + i];
    }
  }

 private:
  // Evenly spaced tokens are one block.
  static constexpr std::int64_t kNone = 0;
  const T* first_;
  size_t stride_;
  bool contiguous_ = true;
  const std::int64_t* table_ = &kNone;
  unsigned shift_ = 63;
  size_t mask_ = ~size_t{0} >> 1;
  size_t block_ = 0;
};

/// The rows of one item, in the memory order of a batch: head by head.
template <typename T>
struct AttentionRows {
  size_t batch;
  size_t first;  // row within the batch
  size_t count;
  const T* query;
  AttentionTokens<T> key;
  AttentionTokens<T> value;
  T* output;
  size_t query_step;  // from row to row
  size_t output_step;

  AttentionRows(const AttentionProblem& a, size_t item) : AttentionRows(a, item, Place(a, item)) {}

  size_t Head(const AttentionProblem& a, size_t row) const { return (first + row) / a.queries; }
  size_t Query(const AttentionProblem& a, size_t row) const { return (first + row) % a.queries; }

 private:
  struct Place {
    size_t batch, start, first, span, tile_rows, head;

    Place(const AttentionProblem& a, size_t item)
        : span(AttentionSpan(a)), tile_rows(AttentionTileRows(a)) {
      const size_t tiles = (span + tile_rows - 1) / tile_rows;
      const size_t spans = a.heads * a.queries / span;
      start = item % tiles * tile_rows;
      first = item / tiles % spans * span + start;
      batch = item / tiles / spans;
      head = first / a.queries;
    }
  };

  AttentionRows(const AttentionProblem& a, size_t, const Place& at)
      : batch(at.batch),
        first(at.first),
        count(HWY_MIN(at.tile_rows, at.span - at.start)),
        key(a, a.key, at.batch, at.head / (a.heads / a.key_heads), a.key_heads, a.head_dim),
        value(a, a.value, at.batch, at.head / (a.heads / a.value_heads), a.value_heads,
              a.value_dim) {
    size_t row = batch * a.heads * a.queries + first;
    size_t step = 1;
    if (a.bshd && a.queries > 1) {
      step = a.heads;
      row += first % a.queries * (step - 1) + at.head - at.head * a.queries;
    }
    query = static_cast<const T*>(a.query) + row * a.head_dim;
    output = static_cast<T*>(a.output) + row * a.value_dim;
    query_step = step * a.head_dim;
    output_step = step * a.value_dim;
  }
};

/// How keys and values in the type of the queries are read.
template <typename T>
struct AttentionFloats {
  using E = T;
  static constexpr bool kCodes = false;
  AttentionTokens<T> key;
  AttentionTokens<T> value;

  AttentionFloats(const AttentionProblem&, const AttentionRows<T>& rows)
      : key(rows.key), value(rows.value) {}

  /// Whether a vector never has values of both halves of a row.
  static bool IsWhole(const AttentionProblem&, size_t) { return true; }
  static size_t Bytes(size_t dim) { return dim * sizeof(T); }

  /// Values [i, i + lanes) of a row of `dim` values.
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* row, size_t i, size_t) {
    return LoadWide(d, row + i);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadN(D d, const T* row, size_t i, size_t, size_t n) {
    return LoadWideN(d, row + i, n);
  }
};

/// How codes of `kBits` bits are read: the values without their scales.
template <typename T, size_t kBits>
struct AttentionNbits {
  using E = std::uint8_t;
  using W = Wide<T>;
  static constexpr bool kCodes = true;
  AttentionTokens<E> key;
  AttentionTokens<E> value;
  AttentionTokens<T> key_scales;
  AttentionTokens<T> value_scales;

  AttentionNbits(const AttentionProblem& a, const AttentionRows<T>& rows)
      : AttentionNbits(a, rows.batch, rows.Head(a, 0) / (a.heads / a.key_heads),
                       rows.Head(a, 0) / (a.heads / a.value_heads)) {}

  static bool IsWhole(const AttentionProblem& a, size_t lanes) {
    return kBits == 8 || (a.head_dim % (2 * lanes) == 0 && a.value_dim % (2 * lanes) == 0);
  }
  static size_t Bytes(size_t dim) { return dim * kBits / 8; }

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const E* row, size_t i, size_t dim) {
    const hn::Rebind<E, D> bytes;
    const size_t width = Bytes(dim);
    if (kBits == 8 || i < width) return Values<0>(d, hn::LoadU(bytes, row + i));
    return Values<1>(d, hn::LoadU(bytes, row + i - width));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadN(D d, const E* row, size_t i, size_t, size_t n) {
    // Only with 8 bits: rows of two halves are read in whole vectors, see IsWhole().
    return Values<0>(d, hn::LoadN(hn::Rebind<E, D>(), row + i, n));
  }

  static W Scale(const AttentionTokens<T>& scales, size_t token) {
    return static_cast<W>(hwy::ConvertScalarTo<W>(*scales[token]));
  }

  /// Writes rows [first, first + count) as values with their scales.
  static void Dequantize(const AttentionTokens<E>& codes, const AttentionTokens<T>& scales,
                         size_t first, size_t count, size_t dim, W* HWY_RESTRICT out) {
    const hn::ScalableTag<W> d;
    const size_t lanes = hn::Lanes(d), width = Bytes(dim);
    for (size_t token = first; token < first + count; ++token, out += dim) {
      const E* HWY_RESTRICT row = codes[token];
      const auto scale = hn::Set(d, Scale(scales, token));
      for (size_t i = 0; i < width; i += lanes) {
        const size_t n = HWY_MIN(lanes, width - i);
        const auto bytes = hn::LoadN(hn::Rebind<E, decltype(d)>(), row + i, n);
        hn::StoreN(hn::Mul(Values<0>(d, bytes), scale), d, out + i, n);
        if constexpr (kBits == 4) {
          hn::StoreN(hn::Mul(Values<1>(d, bytes), scale), d, out + width + i, n);
        }
      }
    }
  }

 private:
  AttentionNbits(const AttentionProblem& a, size_t batch, size_t key_head, size_t value_head)
      : key(a, a.codes.key, batch, key_head, a.key_heads, Bytes(a.head_dim)),
        value(a, a.codes.value, batch, value_head, a.value_heads, Bytes(a.value_dim)),
        key_scales(a, a.codes.key_scales, batch, key_head, a.key_heads, 1),
        value_scales(a, a.codes.value_scales, batch, value_head, a.value_heads, 1) {}

  /// The codes of one half of each byte as signed numbers.
  template <int kHalf, class D, class V>
  static HWY_INLINE hn::Vec<D> Values(D d, V bytes) {
    const hn::Rebind<E, D> u8;
    const hn::Rebind<std::int8_t, D> i8;
    if constexpr (kBits == 4) {
      bytes = kHalf == 0 ? hn::And(bytes, hn::Set(u8, E{15})) : hn::ShiftRight<4>(bytes);
    }
    const auto codes = hn::BitCast(i8, hn::Sub(bytes, hn::Set(u8, E{1} << (kBits - 1))));
    const auto wide = hn::PromoteTo(hn::Rebind<std::int32_t, D>(), codes);
    if constexpr (sizeof(W) == 8) {
      return hn::PromoteTo(d, wide);
    } else {
      return hn::ConvertTo(d, wide);
    }
  }
};

struct KeyRange {
  std::int64_t first;
  std::int64_t last;
};

/// Keys to which query `query` may attend by position.
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

/// Sets the key ranges of an item's rows, or the offsets of their masks, and returns the union of
/// the ranges.
template <typename T, typename W>
KeyRange SetRows(const AttentionProblem& a, const AttentionRows<T>& rows,
                 const AttentionScratch<W>& s) {
  KeyRange all = {static_cast<std::int64_t>(a.keys), 0};
  size_t head = rows.Head(a, 0), query = rows.Query(a, 0);
  for (size_t row = 0; row < rows.count; ++row) {
    if (a.mask.kind != MaskKind::kNone) {
      s.mask_at[row] = rows.batch * a.mask.batch_stride + head * a.mask.head_stride +
                       query * a.mask.query_stride;
    }
    const KeyRange range = RangeOf(a, query);
    s.first_key[row] = range.first;
    s.last_key[row] = range.last;
    if (range.first != range.last) {
      all.first = HWY_MIN(all.first, range.first);
      all.last = HWY_MAX(all.last, range.last);
    }
    if (++query == a.queries) {
      query = 0;
      ++head;
    }
  }
  return all;
}

/// Prefetches memory that is needed next during other computations: a few cache lines per block.
struct Ahead {
  static constexpr size_t kLine = 64;
  const char* at[4];
  const char* end[4];
  size_t ranges;
  size_t lines;  // per block

  template <typename E>
  void Add(const E* start, size_t count) {
    if (count == 0) return;
    at[ranges] = reinterpret_cast<const char*>(start);
    end[ranges++] = reinterpret_cast<const char*>(start + count);
  }
  /// Distributes the ranges over about `blocks` blocks.
  void Spread(size_t blocks) {
    size_t bytes = 0;
    for (size_t i = 0; i < ranges; ++i) bytes += static_cast<size_t>(end[i] - at[i]);
    lines = bytes / kLine / HWY_MAX(blocks, size_t{1}) + 1;
  }
  HWY_INLINE void Fetch() {
    if (ranges == 0) return;
    const char*& p = at[ranges - 1];
    const char* stop = HWY_MIN(p + lines * kLine, end[ranges - 1]);
    for (; p < stop; p += kLine) __builtin_prefetch(p, 0, 2);
    if (p >= end[ranges - 1]) --ranges;
  }
};

/// Schedules the prefetch of keys and values [key, end) during about `blocks` blocks. If there are
/// none, that of the output and of the queries of the following rows.
template <typename T>
void SetAhead(const AttentionProblem& a, const AttentionRows<T>& rows, std::int64_t key,
              std::int64_t end, size_t blocks, Ahead* ahead) {
  ahead->ranges = 0;
  if (!rows.key.contiguous() && (key < end || a.bshd)) return;
  if (key < end) {
    const auto at = static_cast<size_t>(key);
    const auto count = static_cast<size_t>(end - key);
    ahead->Add(rows.value[at], count * a.value_dim);
    ahead->Add(rows.key[at], count * a.head_dim);
  } else {
    const size_t others = a.heads * a.queries - rows.first - rows.count;
    ahead->Add(rows.query + rows.count * a.head_dim, HWY_MIN(others, kTileRows) * a.head_dim);
    ahead->Add(rows.output, rows.count * a.value_dim);
  }
  ahead->Spread(blocks);
}

/// Initial values of a row's running maximum and sum: the sink, which is part of the sum, if any.
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
