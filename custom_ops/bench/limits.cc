// What this machine can do at most: fused multiply-adds from registers, reading, copying. Plain C++
// with vector types, compiled for the machine it runs on by tools/bench/limits.py:
//
//   c++ -O3 -march=native -ffp-contract=fast -shared -fPIC -pthread limits.cc -o liblimits.so
//
// Every function does its work `repeats` times on each of `threads` threads and returns when all
// are done; who calls measures the time.

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr std::size_t kBytes = 64;
#else
constexpr std::size_t kBytes = 32;
#endif
using Vector = float __attribute__((vector_size(kBytes), aligned(4), may_alias));
constexpr std::size_t kChains = 12;  // two pipes of latency four, and some to spare

template <class Body>
void OnThreads(int threads, const Body& body) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&body, i] { body(i); });
  body(0);
  for (std::thread& other : others) other.join();
}

volatile float sink;

void Keep(const Vector* sums, std::size_t count) {
  Vector total = sums[0];
  for (std::size_t i = 1; i < count; ++i) total += sums[i];
  sink = total[0];
}

void MultiplyAdd(std::int64_t repeats) {
  Vector sums[kChains];
  // Chains that begin alike would be computed once.
  for (std::size_t k = 0; k < kChains; ++k) sums[k] = Vector{} + static_cast<float>(k);
  Vector a = Vector{} + 0.5f, b = Vector{} + 1.0f;
  for (std::int64_t i = 0; i < repeats; ++i) {
    __asm__ volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (std::size_t k = 0; k < kChains; ++k) sums[k] = sums[k] * a + b;
  }
  Keep(sums, kChains);
}

void Read(const char* from, std::size_t bytes, std::int64_t repeats) {
  constexpr std::size_t kSums = 8;
  for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
    Vector sums[kSums] = {};
    for (std::size_t at = 0; at + kSums * kBytes <= bytes; at += kSums * kBytes) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kSums; ++k) {
        sums[k] += *reinterpret_cast<const Vector*>(from + at + k * kBytes);
      }
    }
    Keep(sums, kSums);
  }
}

void Copy(const char* from, char* to, std::size_t bytes, std::int64_t repeats) {
  for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t at = 0; at + kBytes <= bytes; at += kBytes) {
      *reinterpret_cast<Vector*>(to + at) = *reinterpret_cast<const Vector*>(from + at);
      __asm__ volatile("");  // no call of memcpy, which may not keep what it wrote in the cache
    }
    __asm__ volatile("" ::: "memory");
  }
}

}  // namespace

/// Floating-point operations of one repeat of `limits_fma` on one thread.
extern "C" std::int64_t limits_fma_flops() { return 2 * kChains * kBytes / sizeof(float); }

extern "C" void limits_fma(int threads, std::int64_t repeats) {
  OnThreads(threads, [=](int) { MultiplyAdd(repeats); });
}

/// bfloat16 pairs into float32 sums; without the instruction nothing is done, and 0 flops reported.
extern "C" std::int64_t limits_bf16_flops() {
#ifdef __AVX512BF16__
  return 2 * limits_fma_flops();
#else
  return 0;
#endif
}

extern "C" void limits_bf16(int threads, std::int64_t repeats) {
#ifdef __AVX512BF16__
  OnThreads(threads, [=](int) {
    __m512 sums[kChains];
    for (std::size_t k = 0; k < kChains; ++k) sums[k] = _mm512_set1_ps(static_cast<float>(k));
    __m512bh a = {};
    for (std::int64_t i = 0; i < repeats; ++i) {
      __asm__ volatile("" : "+x"(a));
#pragma GCC unroll 12
      for (std::size_t k = 0; k < kChains; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], a, a);
    }
    for (std::size_t k = 1; k < kChains; ++k) sums[0] += sums[k];
    sink = sums[0][0];
  });
#else
  (void)threads;
  (void)repeats;
#endif
}

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
namespace {

constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
constexpr std::int64_t kTileProducts = 4;  // sums that do not depend on each other

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, unused[15] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <bool kBytes>
void MultiplyTiles(std::int64_t repeats) {
  const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (std::int64_t i = 0; i < repeats; ++i) {
    if constexpr (kBytes) {
      _tile_dpbusd(0, 4, 5);
      _tile_dpbusd(1, 4, 5);
      _tile_dpbusd(2, 4, 5);
      _tile_dpbusd(3, 4, 5);
    } else {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_release();
}

}  // namespace

/// Operations of one repeat of `limits_amx` with bfloat16 (twice as many with bytes); 0 without AMX
/// or without permission to use it.
extern "C" std::int64_t limits_amx_flops() {
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 0;
  return kTileProducts * 2 * 16 * 16 * 32;
}

/// Products of tiles from registers.
extern "C" void limits_amx(int threads, std::int64_t repeats, int bytes) {
  OnThreads(threads, [=](int) {
    bytes != 0 ? MultiplyTiles<true>(repeats) : MultiplyTiles<false>(repeats);
  });
}
#else
extern "C" std::int64_t limits_amx_flops() { return 0; }
extern "C" void limits_amx(int, std::int64_t, int) {}
#endif

/// Reads `bytes` at `from`, each thread its part.
extern "C" void limits_read(int threads, std::int64_t repeats, const char* from,
                            std::int64_t bytes) {
  const auto part = static_cast<std::size_t>(bytes) / static_cast<std::size_t>(threads);
  OnThreads(threads,
            [=](int i) { Read(from + static_cast<std::size_t>(i) * part, part, repeats); });
}

/// Copies `bytes`, each thread its part. The places must not overlap.
extern "C" void limits_copy(int threads, std::int64_t repeats, const char* from, char* to,
                            std::int64_t bytes) {
  const auto part = static_cast<std::size_t>(bytes) / static_cast<std::size_t>(threads);
  OnThreads(threads, [=](int i) {
    const std::size_t at = static_cast<std::size_t>(i) * part;
    Copy(from + at, to + at, part, repeats);
  });
}
