// Tile registers: matrices of 16 rows of 64 bytes, and products of them. AmxTiles are those of the
// processor, ModelTiles compute the same without them. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_SIMD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_SIMD_AMX_INL_H_
#undef COREAI_SIMD_AMX_INL_H_
#else
#define COREAI_SIMD_AMX_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kAmxRows = 16;
inline constexpr size_t kAmxRowBytes = 64;
inline constexpr size_t kAmxBytes = kAmxRows * kAmxRowBytes;
/// 32-bit sums in a row of a tile.
inline constexpr size_t kAmxColumns = kAmxRowBytes / 4;
/// Inner dimension of a product of tiles of bfloat16.
inline constexpr size_t kAmxPairDepth = kAmxRowBytes / 2;
/// Inner dimension of a product of tiles of bytes.
inline constexpr size_t kAmxByteDepth = kAmxRowBytes;

// In a product c += a * b, row i of `a` holds elements k of the inner dimension one after the
// other. `b` holds, in 32 bits, consecutive elements k of one column: pairs of bfloat16 or quads of
// bytes. Row i, column j of `c` is sums of 32 bits. Base addresses need no alignment.

#if HWY_ARCH_X86_64

/// The tile registers of this thread, all of 16 rows of 64 bytes, during the lifetime of the
/// object. Only if CpuHasAmx(). Tile registers are released at the end: until another AmxTiles, the
/// thread has no tile state to save, and sees none of ours. Products of tiles 6 and 7 by 4 and 5
/// may have a smaller inner dimension, of `depth` bytes: rows of 6 and 7 are so long then, and 4
/// and 5 have a row for each four of them.
class AmxTiles {
 public:
  explicit AmxTiles(size_t depth = kAmxByteDepth) {
    // Palette 1: rows and bytes per row of each register.
    alignas(64) uint8_t config[64] = {1};
    for (size_t tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = static_cast<uint8_t>(tile >= 6 ? depth : kAmxRowBytes);
      config[48 + tile] = static_cast<uint8_t>(tile / 2 == 2 ? depth / 4 : kAmxRows);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  ~AmxTiles() { __asm__ volatile("tilerelease" : : : "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  HWY_INLINE void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// Loads rows that are `stride` bytes apart.
  template <int kTile>
  HWY_INLINE void Load(const void* base, size_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(kTile), "r"(base), "r"(stride)
                     : "memory");
  }
  /// The same for rows that are not read again soon: they replace less of the first-level cache.
  template <int kTile>
  HWY_INLINE void LoadOnce(const void* base, size_t stride) {
    __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(kTile), "r"(base), "r"(stride)
                     : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(void* base, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(kTile), "r"(base), "r"(stride)
                     : "memory");
  }
  /// c += a * b of bfloat16, in float32; subnormal numbers count as zero.
  template <int kC, int kA, int kB>
  HWY_INLINE void AddPairs() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  /// c += a * b of unsigned and signed bytes, exact modulo 2^32.
  template <int kC, int kA, int kB>
  HWY_INLINE void AddUnsignedSigned() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  /// The same for signed and unsigned bytes.
  template <int kC, int kA, int kB>
  HWY_INLINE void AddSignedUnsigned() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  /// The same for signed bytes.
  template <int kC, int kA, int kB>
  HWY_INLINE void AddSigned() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

#endif

/// Tile registers in memory, for tests on machines without AMX and for sanitizers, which do not see
/// what tile instructions access. Results are bitwise those of the instructions, as the Software
/// Developer's Manual, volume 2, defines them.
class ModelTiles {
 public:
  explicit ModelTiles(size_t depth = kAmxByteDepth) : depth_(depth) {}
  template <int kTile>
  void Zero() {
    hwy::ZeroBytes(tiles_[kTile], kAmxBytes);
  }
  template <int kTile>
  void Load(const void* base, size_t stride) {
    Zero<kTile>();
    const size_t bytes = kTile >= 6 ? depth_ : kAmxRowBytes;
    for (size_t row = 0; row < (kTile / 2 == 2 ? depth_ / 4 : kAmxRows); ++row) {
      const auto* from = static_cast<const char*>(base) + row * stride;
      hwy::CopyBytes(from, tiles_[kTile] + row * kAmxRowBytes, bytes);
    }
  }
  template <int kTile>
  void LoadOnce(const void* base, size_t stride) {
    Load<kTile>(base, stride);
  }
  template <int kTile>
  void Store(void* base, size_t stride) {
    for (size_t row = 0; row < kAmxRows; ++row) {
      auto* to = static_cast<char*>(base) + row * stride;
      hwy::CopyBytes(tiles_[kTile] + row * kAmxRowBytes, to, kAmxRowBytes);
    }
  }
  /// Sums the even and the odd elements of the inner dimension separately, and then adds both.
  template <int kC, int kA, int kB>
  void AddPairs() {
    ForEachSum<kC, float>([&](size_t row, size_t column, float sum) {
      float parity[2] = {0, 0};
      for (size_t k = 0; k < kAmxPairDepth; ++k) {
        const float a = Pair<kA>(row, k);
        const float b = Pair<kB>(k / 2, column * 2 + k % 2);
        parity[k % 2] = Flush(__builtin_fmaf(a, b, parity[k % 2]));
      }
      return Flush(Flush(sum) + Flush(parity[0] + parity[1]));
    });
  }
  template <int kC, int kA, int kB>
  void AddUnsignedSigned() {
    AddBytes<kC, kA, kB, uint8_t, int8_t>();
  }
  template <int kC, int kA, int kB>
  void AddSignedUnsigned() {
    AddBytes<kC, kA, kB, int8_t, uint8_t>();
  }
  template <int kC, int kA, int kB>
  void AddSigned() {
    AddBytes<kC, kA, kB, int8_t, int8_t>();
  }

 private:
  template <int kC, typename E, class Sum>
  void ForEachSum(const Sum& sum) {
    for (size_t row = 0; row < kAmxRows; ++row) {
      for (size_t column = 0; column < kAmxColumns; ++column) {
        E value;
        uint8_t* at = tiles_[kC] + row * kAmxRowBytes + column * sizeof(E);
        hwy::CopyBytes<sizeof(E)>(at, &value);
        value = sum(row, column, value);
        hwy::CopyBytes<sizeof(E)>(&value, at);
      }
    }
  }
  template <int kTile>
  float Pair(size_t row, size_t i) const {
    uint16_t bits;
    hwy::CopyBytes<2>(tiles_[kTile] + row * kAmxRowBytes + 2 * i, &bits);
    return Flush(hwy::BitCastScalar<float>(static_cast<uint32_t>(bits) << 16));
  }
  static float Flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? x * 0.0f : x; }

  template <int kC, int kA, int kB, typename A, typename B>
  void AddBytes() {
    ForEachSum<kC, uint32_t>([&](size_t row, size_t column, uint32_t sum) {
      for (size_t k = 0; k < kAmxByteDepth; ++k) {
        const auto a = static_cast<A>(tiles_[kA][row * kAmxRowBytes + k]);
        const auto b = static_cast<B>(tiles_[kB][k / 4 * kAmxRowBytes + column * 4 + k % 4]);
        sum += static_cast<uint32_t>(int32_t{a} * int32_t{b});
      }
      return sum;
    });
  }

  size_t depth_;
  alignas(64) uint8_t tiles_[8][kAmxBytes];
};

/// Whether kernels of this target may use tiles, and which.
#ifdef COREAI_MODEL_TILES
inline constexpr bool kHasTiles = true;
using KernelTiles = ModelTiles;
#elif HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
inline constexpr bool kHasTiles = true;
using KernelTiles = AmxTiles;
#else
inline constexpr bool kHasTiles = false;
using KernelTiles = ModelTiles;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
