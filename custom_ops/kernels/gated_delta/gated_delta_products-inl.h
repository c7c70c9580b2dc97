// Products of a column of tiles and a tile, both sums of parts of bfloat16. Included once per
// target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_GATED_DELTA_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_GATED_DELTA_PRODUCTS_INL_H_
#undef COREAI_KERNELS_GATED_DELTA_PRODUCTS_INL_H_
#else
#define COREAI_KERNELS_GATED_DELTA_PRODUCTS_INL_H_
#endif

#include "kernels/gated_delta/gated_delta_plan.h"
#include "simd/amx_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// Sums of kLefts (2 or 4) tiles, one above the other, in tile registers. The left factors have
/// kLeftParts parts. Products of parts i and j are omitted if i + j >= kFloatParts.
template <size_t kLeftParts, class Tiles>
class PartProducts {
 public:
  void Zero() { ZeroSums(tiles_); }

  template <size_t kLefts>
  HWY_INLINE void Load(const float* HWY_RESTRICT sums) {
    tiles_.template Load<0>(sums, kAmxRowBytes);
    tiles_.template Load<1>(sums + kAmxWords, kAmxRowBytes);
    if constexpr (kLefts == 2) return;
    tiles_.template Load<2>(sums + 2 * kAmxWords, kAmxRowBytes);
    tiles_.template Load<3>(sums + 3 * kAmxWords, kAmxRowBytes);
  }

  template <size_t kLefts>
  HWY_INLINE void Store(float* HWY_RESTRICT sums, size_t columns = kAmxColumns) {
    const size_t stride = columns * sizeof(float), distance = kAmxRows * columns;
    tiles_.template Store<0>(sums, stride);
    tiles_.template Store<1>(sums + distance, stride);
    if constexpr (kLefts == 2) return;
    tiles_.template Store<2>(sums + 2 * distance, stride);
    tiles_.template Store<3>(sums + 3 * distance, stride);
  }

  /// Adds the products of kLefts tiles, `distance` words apart, and one tile: of all parts of the
  /// former and kParts of the latter, which are `left_part` and `right_part` words apart.
  template <size_t kLefts, size_t kParts>
  HWY_INLINE void Add(const std::uint32_t* HWY_RESTRICT left, size_t distance, size_t left_part,
                      const std::uint32_t* HWY_RESTRICT right, size_t right_part) {
    for (size_t i = 0; i < kLeftParts; ++i) {
      for (size_t j = 0; j < kParts && i + j < kFloatParts; ++j) {
        AddTile<kLefts>(left + i * left_part, distance, right + j * right_part);
      }
    }
  }

 private:
  template <size_t kLefts>
  HWY_INLINE void AddTile(const std::uint32_t* HWY_RESTRICT left, size_t distance,
                          const std::uint32_t* HWY_RESTRICT right) {
    tiles_.template Load<6>(right, kAmxRowBytes);
    tiles_.template Load<4>(left, kAmxRowBytes);
    tiles_.template AddPairs<0, 4, 6>();
    tiles_.template Load<5>(left + distance, kAmxRowBytes);
    tiles_.template AddPairs<1, 5, 6>();
    if constexpr (kLefts == 2) return;
    tiles_.template Load<4>(left + 2 * distance, kAmxRowBytes);
    tiles_.template AddPairs<2, 4, 6>();
    tiles_.template Load<5>(left + 3 * distance, kAmxRowBytes);
    tiles_.template AddPairs<3, 5, 6>();
  }

  Tiles tiles_;
};

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
