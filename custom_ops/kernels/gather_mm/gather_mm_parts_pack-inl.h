// Floats as tiles of their parts. Included once per target.
//
// Tiles that are multiplied together are adjacent: [pairs of tiles, depth / 32, parts, tiles of a
// pair], where the last pair may be a single tile and the first part is the largest.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATHER_MM_PARTS_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATHER_MM_PARTS_PACK_INL_H_
#undef COREAI_KERNELS_GATHER_MM_PARTS_PACK_INL_H_
#else
#define COREAI_KERNELS_GATHER_MM_PARTS_PACK_INL_H_
#endif

#include "kernels/gather_mm/gather_mm_amx_pack-inl.h"
#include "kernels/gather_mm/gather_mm_parts.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

inline constexpr size_t kFloatParts = 3;

/// The range of the numbers that were added.
class RangeOf {
 public:
  // Explicit, since compilers do not apply the target of the region to an implicit one.
  HWY_INLINE RangeOf() : smallest_(hn::Set(du_, 0xFFFFFFFFu)), largest_(hn::Zero(du_)) {}
  HWY_INLINE void Add(hn::Vec<hn::ScalableTag<float>> x) {
    const auto bits = hn::BitCast(du_, hn::Abs(x));
    largest_ = hn::Max(largest_, bits);
    // Zero wraps to the largest integer.
    smallest_ = hn::Min(smallest_, hn::Sub(bits, hn::Set(du_, 1u)));
  }
  HWY_INLINE PartsRange Get() const {
    const std::uint32_t smallest = hn::ReduceMin(du_, smallest_);
    return {smallest == 0xFFFFFFFFu ? smallest : smallest + 1, hn::ReduceMax(du_, largest_)};
  }

 private:
  const hn::ScalableTag<std::uint32_t> du_;
  hn::Vec<hn::ScalableTag<std::uint32_t>> smallest_;
  hn::Vec<hn::ScalableTag<std::uint32_t>> largest_;
};

/// Returns the nearest number of eight significant bits, and leaves the rest in `x`. Veltkamp 1968;
/// Dekker 1971, "A floating-point technique for extending the available precision", section 3.
template <class D>
HWY_INLINE hn::Vec<D> TakePart(D d, hn::Vec<D>& x) {
  const auto scaled = hn::Mul(x, hn::Set(d, 65537.0f));  // 2^16 + 1: 24 - 16 bits stay
  const auto part = hn::Sub(scaled, hn::Sub(scaled, x));
  x = hn::Sub(x, part);
  return part;
}

/// Stores the parts of 2 * Lanes(d) numbers; a part is `distance` words after the one before.
template <class D>
HWY_INLINE void StoreFloatParts(D d, hn::Vec<D> a, hn::Vec<D> b, size_t distance,
                                std::uint16_t* HWY_RESTRICT to) {
  for (size_t part = 0; part + 1 < kFloatParts; ++part, to += 2 * distance) {
    const auto of_a = TakePart(d, a), of_b = TakePart(d, b);
    StoreUpperHalves(d, of_a, of_b, to);
  }
  StoreUpperHalves(d, a, b, to);
}

/// Packs a row: [steps] rows of tiles, whose parts are `tiles` tiles apart.
inline PartsRange PackRowOfParts(const float* HWY_RESTRICT row, size_t depth, size_t tiles,
                                 std::uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  RangeOf range;
  const auto load = [&](size_t at) HWY_ATTR {
    if (at + kLanes <= depth) return hn::LoadU(d, row + at);
    return at < depth ? hn::LoadN(d, row + at, depth - at) : hn::Zero(d);
  };
  for (size_t k = 0; k < depth; k += kAmxPairDepth, out += kFloatParts * tiles * kAmxWords) {
    for (size_t i = 0; i < kAmxPairDepth; i += 2 * kLanes) {
      const auto a = load(k + i), b = load(k + i + kLanes);
      range.Add(a);
      range.Add(b);
      StoreFloatParts(d, a, b, tiles * kAmxWords, reinterpret_cast<std::uint16_t*>(out) + i);
    }
  }
  return range.Get();
}

inline void PackPartsLeft(const void* const* left, size_t rows, size_t depth,
                          const PartsRange& exact, void* packed, PartsRow* states) {
  const size_t padded = RoundUp(rows, kAmxRows);
  for (size_t r = 0; r < padded; ++r) {
    const size_t pair = r / kAmxPair * kAmxPair;
    const size_t tiles = AmxTilesOfPair(pair, padded);
    std::uint32_t* out =
        static_cast<std::uint32_t*>(packed) +
        (pair / kAmxRows * AmxSteps(depth) * kFloatParts + r / kAmxRows % 2) * kAmxWords +
        r % kAmxRows * kAmxColumns;
    if (r < rows) {
      const PartsRange row = PackRowOfParts(static_cast<const float*>(left[r]), depth, tiles, out);
      states[r] = row.largest > exact.largest     ? PartsRow::kOther
                  : row.smallest < exact.smallest ? PartsRow::kSmall
                                                  : PartsRow::kExact;
      continue;
    }
    for (size_t i = 0; i < AmxSteps(depth) * kFloatParts; ++i, out += tiles * kAmxWords) {
      hwy::ZeroBytes(out, kAmxRowBytes);
    }
  }
}

inline PartsRange PackPartsRight(const float* right, size_t depth, size_t columns, bool transposed,
                                 void* packed) {
  const size_t steps = AmxSteps(depth);
  auto* out = static_cast<std::uint32_t*>(packed);
  PartsRange range;
  // A tile of columns, as rows of their elements, and their parts, each of which is transposed.
  alignas(64) std::uint32_t rows[kFloatParts * kAmxWords];
  for (size_t column = 0; column < RoundUp(columns, kAmxColumns); column += kAmxColumns) {
    const size_t pair = column / kAmxPair * kAmxPair;
    const size_t tiles = AmxTilesOfPair(pair, columns);
    std::uint32_t* tile =
        out + (pair / kAmxColumns * steps * kFloatParts + column / kAmxColumns % 2) * kAmxWords;
    for (size_t k = 0; k < depth; k += kAmxPairDepth, tile += kFloatParts * tiles * kAmxWords) {
      for (size_t c = 0; c < kAmxColumns; ++c) {
        // Twice as many: gcc warns of a read beyond the first that no call makes.
        alignas(64) float numbers[2 * kAmxPairDepth] = {};
        for (size_t i = 0; column + c < columns && i < HWY_MIN(kAmxPairDepth, depth - k); ++i) {
          numbers[i] = transposed ? right[(column + c) * depth + k + i]
                                  : right[(k + i) * columns + column + c];
        }
        const PartsRange some = PackRowOfParts(numbers, kAmxPairDepth, 1, rows + c * kAmxColumns);
        range.smallest = HWY_MIN(range.smallest, some.smallest);
        range.largest = HWY_MAX(range.largest, some.largest);
      }
      for (size_t part = 0; part < kFloatParts; ++part) {
        TransposeAmx(rows + part * kAmxWords, tile + part * tiles * kAmxWords);
      }
    }
  }
  return range;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
