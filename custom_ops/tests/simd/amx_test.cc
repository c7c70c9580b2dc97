// Products of tiles: the model against double precision and, where there is AMX, the instructions
// against the model, bit by bit. Permission: refused by everything that can refuse it.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/amx_test.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// sums = sums + 2 * a * b; kind 0: pairs of bfloat16, 1: unsigned * signed, 2: signed * unsigned,
/// 3: signed * signed.
/// Rows of `a` are `stride` bytes apart. Every register is used.
template <class Tiles>
void Multiply(int kind, const void* a, size_t stride, const void* b, void* sums) {
  Tiles tiles;
  tiles.template Load<0>(sums, kAmxRowBytes);
  tiles.template Zero<1>();
  tiles.template Load<6>(a, stride);
  tiles.template Load<7>(b, kAmxRowBytes);
  tiles.template Store<6>(sums, kAmxRowBytes);
  tiles.template Load<5>(sums, kAmxRowBytes);
  if (kind == 0) {
    tiles.template AddPairs<0, 6, 7>();
    tiles.template AddPairs<0, 5, 7>();
  } else if (kind == 1) {
    tiles.template AddUnsignedSigned<0, 6, 7>();
    tiles.template AddUnsignedSigned<0, 5, 7>();
  } else if (kind == 2) {
    tiles.template AddSignedUnsigned<0, 6, 7>();
    tiles.template AddSignedUnsigned<0, 5, 7>();
  } else {
    tiles.template AddSigned<0, 6, 7>();
    tiles.template AddSigned<0, 5, 7>();
  }
  tiles.template Store<0>(sums, kAmxRowBytes);
}

inline void MultiplyInModel(int kind, const void* a, size_t stride, const void* b, void* sums) {
  Multiply<ModelTiles>(kind, a, stride, b, sums);
}

inline void MultiplyNatively(int kind, const void* a, size_t stride, const void* b, void* sums) {
#if HWY_ARCH_X86_64
  Multiply<AmxTiles>(kind, a, stride, b, sums);
#else
  Multiply<ModelTiles>(kind, a, stride, b, sums);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>
#include <thread>

#include "simd/amx.h"
#include "simd/dispatch.h"
#include "tensor.h"

#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace coreai::testing {
namespace {

using Product = void (*)(int, const void*, std::size_t, const void*, void*);
constexpr Product kModel[] = COREAI_TARGETS(MultiplyInModel);
constexpr Product kNative[] = COREAI_TARGETS(MultiplyNatively);
constexpr std::size_t kRows = 16, kWords = 16, kStride = 70;

struct Tile {
  std::array<std::uint8_t, kRows * kStride> a;
  std::array<std::uint8_t, kRows * 64> b;
  std::array<std::uint8_t, kRows * 64> sums;
};

void StoreBits(double x, std::uint8_t* to) {
  const std::uint16_t bits = Bits16(Quantize(x, DType::kBFloat16), DType::kBFloat16);
  std::memcpy(to, &bits, 2);
}

Tile RandomTile(int kind, unsigned seed) {
  Tile tile = {};
  std::mt19937 random(seed);
  std::normal_distribution<double> number;
  const auto fill = [&](auto* bytes) {
    for (std::size_t i = 0; i < bytes->size(); i += 2) {
      if (kind == 0) {
        StoreBits(std::ldexp(number(random), static_cast<int>(random() % 40) - 20), &(*bytes)[i]);
      } else {
        (*bytes)[i] = static_cast<std::uint8_t>(random());
        (*bytes)[i + 1] = static_cast<std::uint8_t>(random());
      }
    }
  };
  fill(&tile.a);
  fill(&tile.b);
  for (std::size_t i = 0; i < kRows * kWords; ++i) {
    const auto sum = static_cast<float>(number(random));
    std::memcpy(&tile.sums[4 * i], &sum, 4);
  }
  return tile;
}

double Element(const std::uint8_t* bytes, std::size_t i, int kind, bool is_signed) {
  if (kind != 0) return is_signed ? static_cast<std::int8_t>(bytes[i]) : bytes[i];
  std::uint16_t bits;
  std::memcpy(&bits, bytes + 2 * i, 2);
  return FromBits16(bits, DType::kBFloat16);
}

TEST(AmxModel, ProductsAreThoseOfTheDefinition) {
  for (const Target target : SupportedTargets()) {
    for (int kind = 0; kind < 4; ++kind) {
      Tile tile = RandomTile(kind, 7);
      const Tile before = tile;
      kModel[static_cast<std::size_t>(target)](kind, tile.a.data(), kStride, tile.b.data(),
                                               tile.sums.data());
      const std::size_t per_word = kind == 0 ? 2 : 4;
      for (std::size_t i = 0; i < kRows * kWords; ++i) {
        const std::size_t row = i / kWords, column = i % kWords;
        double want = 0, magnitude = 1;
        for (std::size_t k = 0; k < kWords * per_word; ++k) {
          const double a = Element(&before.a[row * kStride], k, kind, kind >= 2);
          const std::size_t at = column * per_word + k % per_word;
          const double b = Element(&before.b[k / per_word * 64], at, kind, kind % 2 == 1);
          want += 2 * a * b;
          magnitude += std::fabs(2 * a * b);
        }
        if (kind == 0) {
          float start, sum;
          std::memcpy(&start, &before.sums[4 * i], 4);
          std::memcpy(&sum, &tile.sums[4 * i], 4);
          EXPECT_NEAR(sum, start + want, 1e-6 * magnitude) << TargetName(target) << ' ' << i;
        } else {
          std::uint32_t start, sum;
          std::memcpy(&start, &before.sums[4 * i], 4);
          std::memcpy(&sum, &tile.sums[4 * i], 4);
          EXPECT_EQ(sum, start + static_cast<std::uint32_t>(static_cast<std::int64_t>(want)))
              << TargetName(target) << ' ' << kind << ' ' << i;
        }
      }
    }
  }
}

// Bytes of the sums of a product by the instructions and by the model.
void ExpectSame(int kind, const Tile& tile) {
  Tile native = tile, model = tile;
  const auto amx = static_cast<std::size_t>(Target::kAmx);
  kNative[amx](kind, native.a.data(), kStride, native.b.data(), native.sums.data());
  kModel[amx](kind, model.a.data(), kStride, model.b.data(), model.sums.data());
  EXPECT_EQ(native.sums, model.sums) << "kind " << kind;
}

TEST(Amx, InstructionsAgreeWithTheModelBitByBit) {
  if (!TargetIsSupported(Target::kAmx)) GTEST_SKIP() << "no AMX";
  for (int kind = 0; kind < 4; ++kind) {
    for (unsigned seed = 0; seed < 20; ++seed) ExpectSame(kind, RandomTile(kind, seed));
  }
  // Subnormal numbers, in factors, products and sums.
  Tile tile = RandomTile(0, 3);
  for (std::size_t i = 0; i < tile.a.size(); i += 6) StoreBits(0x1p-130, &tile.a[i]);
  for (std::size_t i = 2; i < tile.a.size(); i += 6) StoreBits(0x1p-80, &tile.a[i]);
  for (std::size_t i = 0; i < tile.b.size(); i += 4) StoreBits(0x1p-50, &tile.b[i]);
  for (std::size_t i = 0; i < kRows * kWords; ++i) {
    const float sum = i % 2 == 0 ? 0x1p-127f : 0x1p-149f;
    std::memcpy(&tile.sums[4 * i], &sum, 4);
  }
  ExpectSame(0, tile);
}

TEST(Amx, InfinityAndNanStayInTheirRowAndColumn) {
  for (const Target target : SupportedTargets()) {
    for (const Product product :
         {kModel[static_cast<std::size_t>(target)], kNative[static_cast<std::size_t>(target)]}) {
      const bool native = product == kNative[static_cast<std::size_t>(target)];
      if (native && target != Target::kAmx) continue;
      Tile tile = RandomTile(0, 5);
      StoreBits(INFINITY, &tile.a[3 * kStride]);
      StoreBits(NAN, &tile.b[9 * 4]);
      product(0, tile.a.data(), kStride, tile.b.data(), tile.sums.data());
      for (std::size_t i = 0; i < kRows * kWords; ++i) {
        float sum;
        std::memcpy(&sum, &tile.sums[4 * i], 4);
        EXPECT_EQ(std::isnan(sum), i % kWords == 9) << i;
        EXPECT_EQ(std::isinf(sum), i / kWords == 3 && i % kWords != 9) << i;
      }
    }
  }
}

// ── permission ────────────────────────────────────────────────────────────────────────────────
struct FakeSystem {
  std::uint32_t levels = 0x1D, features = 7u << 22 & ~(1u << 23), osxsave = 1u << 27, palettes = 1;
  std::uint32_t registers = 8u << 16 | 64u, rows = 16;
  std::uint64_t saved = 3ull << 17 | 7;
  bool permitted = true;
  int requests = 0;
} fake;

bool FakeIsAllowed() {
  return AmxIsAllowed({[](std::uint32_t leaf, std::uint32_t subleaf, std::uint32_t* r) {
                         r[0] = r[1] = r[2] = r[3] = 0;
                         if (leaf == 0) r[0] = fake.levels;
                         if (leaf == 1) r[2] = fake.osxsave;
                         if (leaf == 7 && subleaf == 0) r[3] = fake.features;
                         if (leaf == 0x1D && subleaf == 0) r[0] = fake.palettes;
                         if (leaf == 0x1D && subleaf == 1) r[1] = fake.registers, r[2] = fake.rows;
                       },
                       [] { return fake.saved; },
                       [] {
                         ++fake.requests;
                         return fake.permitted;
                       }});
}

TEST(AmxPermission, NeedsEveryFeatureTheSavedStateAndTheGrant) {
  fake = {};
  fake.features = 1u << 22 | 1u << 24 | 1u << 25;
  const FakeSystem good = fake;
  EXPECT_TRUE(FakeIsAllowed());
  EXPECT_EQ(fake.requests, 1);
  const auto refused = [&](auto change) {
    fake = good;
    change();
    EXPECT_FALSE(FakeIsAllowed());
    return fake.requests;
  };
  EXPECT_EQ(refused([] { fake.permitted = false; }), 1);
  // Nothing is requested that would not be used.
  EXPECT_EQ(refused([] { fake.levels = 0x16; }), 0);
  EXPECT_EQ(refused([] { fake.osxsave = 0; }), 0);
  EXPECT_EQ(refused([] { fake.saved = 7; }), 0);               // a hypervisor that saves no tiles
  EXPECT_EQ(refused([] { fake.saved = 1ull << 17 | 7; }), 0);  // their configuration only
  EXPECT_EQ(refused([] { fake.palettes = 0; }), 0);
  EXPECT_EQ(refused([] { fake.registers = 8u << 16 | 32u; }), 0);
  EXPECT_EQ(refused([] { fake.registers = 4u << 16 | 64u; }), 0);
  EXPECT_EQ(refused([] { fake.rows = 8; }), 0);
  for (const int feature : {22, 24, 25}) {
    EXPECT_EQ(refused([&] { fake.features &= ~(1u << feature); }), 0);
  }
}

#if defined(__linux__) && defined(__x86_64__)

// Exit status of `body` in a child process, which has asked for nothing yet if this one has not.
template <class Body>
int StatusOfChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Answers arch_prctl with an error, or with success without passing it on (error 0).
bool FilterArchPrctl(std::uint32_t error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int Execute(const char* filter) {
  const std::string option = "--gtest_filter=" + std::string(filter);
  return StatusOfChild([&] {
    setenv("COREAI_TEST_FILTERED", "1", 1);
    execl("/proc/self/exe", "coreai_ops_tests", option.c_str(), "--gtest_brief=1",
          static_cast<char*>(nullptr));
    return 127;
  });
}

// A process keeps the permission until it executes another program: each of the two tests runs
// itself in a new process, filters the system call, and asks.
void ExpectRefusedUnderFilter(const char* name, std::uint32_t error) {
  if (std::getenv("COREAI_TEST_FILTERED") == nullptr) {
    EXPECT_EQ(Execute(name), 0);
    return;
  }
  if (!FilterArchPrctl(error)) GTEST_SKIP() << "no system-call filters";
  EXPECT_FALSE(CpuHasAmx());
  EXPECT_NE(BestTarget(), Target::kAmx);
  EXPECT_TRUE(TargetIsSupported(BestTarget()));
}

TEST(AmxPermission, IsRefusedByAFilterOfSystemCalls) {
  ExpectRefusedUnderFilter("AmxPermission.IsRefusedByAFilterOfSystemCalls", EPERM);
}

TEST(AmxPermission, IsRefusedIfTheAnswerIsFake) {
  ExpectRefusedUnderFilter("AmxPermission.IsRefusedIfTheAnswerIsFake", 0);
}

bool Multiplies() {
  Tile native = RandomTile(0, 1), model = native;
  const auto amx = static_cast<std::size_t>(Target::kAmx);
  kNative[amx](0, native.a.data(), kStride, native.b.data(), native.sums.data());
  kModel[amx](0, model.a.data(), kStride, model.b.data(), model.sums.data());
  return native.sums == model.sums;
}

// XINUSE: which state components of this thread are not in their initial state.
std::uint64_t StateInUse() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return std::uint64_t{high} << 32 | low;
}

TEST(Amx, ForkedProcessesAndThreadsUseItToo) {
  if (!TargetIsSupported(Target::kAmx)) GTEST_SKIP() << "no AMX";
  EXPECT_TRUE(Multiplies());
  EXPECT_EQ(StatusOfChild([] { return Multiplies() ? 0 : 1; }), 0);
  bool in_thread = false;
  std::thread([&] { in_thread = Multiplies(); }).join();
  EXPECT_TRUE(in_thread);
}

TEST(Amx, NoTileStateIsLeftBehind) {
  if (!TargetIsSupported(Target::kAmx)) GTEST_SKIP() << "no AMX";
  EXPECT_TRUE(Multiplies());
  EXPECT_EQ(StateInUse() >> 17 & 3, 0u);
  std::uint64_t elsewhere = 3;
  std::thread([&] { elsewhere = StateInUse() >> 17 & 3; }).join();
  EXPECT_EQ(elsewhere, 0u);
}

#endif

}  // namespace
}  // namespace coreai::testing
#endif
