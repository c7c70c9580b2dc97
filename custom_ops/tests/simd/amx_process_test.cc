// AMX in a process: permission, refused by everything that can refuse it; forked processes, threads
// and signal handlers.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/simd/amx_process_test.cc"
#include "simd/foreach_target.h"
// foreach_target comes first
#include "hwy/highway.h"
#include "simd/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

/// sums += repeats * a * b of bfloat16.
template <class Tiles>
void Multiply(const void* a, const void* b, size_t repeats, void* sums) {
  Tiles tiles;
  tiles.template Load<0>(sums, kAmxRowBytes);
  tiles.template Load<6>(a, kAmxRowBytes);
  tiles.template Load<7>(b, kAmxRowBytes);
  for (size_t i = 0; i < repeats; ++i) tiles.template AddPairs<0, 6, 7>();
  tiles.template Store<0>(sums, kAmxRowBytes);
}

inline void MultiplyInModel(const void* a, const void* b, size_t repeats, void* sums) {
  Multiply<ModelTiles>(a, b, repeats, sums);
}

inline void MultiplyNatively(const void* a, const void* b, size_t repeats, void* sums) {
  Multiply<KernelTiles>(a, b, repeats, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>
#include <cstdint>

#include "gtest/gtest.h"
#include "simd/amx.h"
#include "simd/dispatch.h"

#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>
#endif

namespace coreai::testing {
namespace {

struct FakeSystem {
  std::uint32_t levels = 0x1D, features = 1u << 22 | 1u << 24 | 1u << 25, osxsave = 1u << 27;
  std::uint32_t palettes = 1, registers = 8u << 16 | 64u, rows = 16, state = 8192;
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
                         if (leaf == 0xD && subleaf == 18) r[0] = fake.state;
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
  EXPECT_TRUE(FakeIsAllowed());
  EXPECT_EQ(fake.requests, 1);
  const auto refused = [](auto change) {
    fake = {};
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
  EXPECT_EQ(refused([] { fake.state = 0; }), 0);               // no size of their state
  EXPECT_EQ(refused([] { fake.state = 4096; }), 0);            // half of the tiles
  EXPECT_EQ(refused([] { fake.palettes = 0; }), 0);
  EXPECT_EQ(refused([] { fake.registers = 8u << 16 | 32u; }), 0);
  EXPECT_EQ(refused([] { fake.registers = 4u << 16 | 64u; }), 0);
  EXPECT_EQ(refused([] { fake.rows = 8; }), 0);
  for (const int feature : {22, 24, 25}) {
    EXPECT_EQ(refused([&] { fake.features &= ~(1u << feature); }), 0);
  }
}

#if defined(__linux__) && defined(__x86_64__)

using Product = void (*)(const void*, const void*, std::size_t, void*);
constexpr Product kModel[] = COREAI_TARGETS(MultiplyInModel);
constexpr Product kNative[] = COREAI_TARGETS(MultiplyNatively);
constexpr std::size_t kWords = 16 * 16;
using Sums = std::array<float, kWords>;

Sums ProductOf(const Product* products, Target target, std::size_t repeats) {
  std::array<std::uint16_t, 2 * kWords> a, b;
  for (std::size_t i = 0; i < a.size(); ++i) {  // ±1.0 to 1.99
    a[i] = static_cast<std::uint16_t>(0x3F80 + i * 37 % 128 + (i % 3 == 0) * 0x8000);
    b[i] = static_cast<std::uint16_t>(0x3F80 + i * 53 % 128 + (i % 5 == 0) * 0x8000);
  }
  Sums sums = {};
  products[static_cast<std::size_t>(target)](a.data(), b.data(), repeats, sums.data());
  return sums;
}

// Whether the instructions agree with the model.
bool Multiplies() {
  return ProductOf(kNative, Target::kAmx, 3) == ProductOf(kModel, Target::kScalar, 3);
}

// Exit status of `body` in a child process, which has asked for nothing yet if this one has not.
template <class Body>
int StatusOfChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Runs the body of the present test in a new process: one keeps the permission until it executes
// another program.
template <class Body>
void InNewProcess(const Body& body) {
  constexpr char kIsNew[] = "COREAI_TEST_IN_NEW_PROCESS";
  if (std::getenv(kIsNew) != nullptr) return body();
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  EXPECT_EQ(StatusOfChild([&] {
              setenv(kIsNew, "1", 1);
              execl("/proc/self/exe", "coreai_ops_tests", ("--gtest_filter=" + name).c_str(),
                    "--gtest_brief=1", static_cast<char*>(nullptr));
              return 127;
            }),
            0);
}

void ExpectTheNextTarget() {
  EXPECT_FALSE(CpuHasAmx());
  EXPECT_NE(BestTarget(), Target::kAmx);
  EXPECT_TRUE(TargetIsSupported(BestTarget()));
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

void ExpectRefusedUnderFilter(std::uint32_t error) {
  InNewProcess([&] {
    if (!FilterArchPrctl(error)) GTEST_SKIP() << "no system-call filters";
    ExpectTheNextTarget();
  });
}

TEST(AmxPermission, IsRefusedByAFilterOfSystemCalls) { ExpectRefusedUnderFilter(EPERM); }

// Linux before 5.16 does not know the request.
TEST(AmxPermission, IsRefusedByAnOldSystem) { ExpectRefusedUnderFilter(EINVAL); }

TEST(AmxPermission, IsRefusedIfTheAnswerIsFake) { ExpectRefusedUnderFilter(0); }

// Linux refuses if a thread has an alternate signal stack that cannot hold the tiles.
class SignalStack {
 public:
  explicit SignalStack(std::size_t size) : memory_(size) {
    stack_t stack = {};
    stack.ss_sp = memory_.data();
    stack.ss_size = size;
    EXPECT_EQ(sigaltstack(&stack, &before_), 0);
  }
  ~SignalStack() { sigaltstack(&before_, nullptr); }

 private:
  std::vector<char> memory_;
  stack_t before_ = {};
};

TEST(AmxPermission, IsRefusedBesideASmallSignalStack) {
  InNewProcess([] {
    const SignalStack small(2048);
    ExpectTheNextTarget();
  });
}

TEST(AmxPermission, IsRefusedBesideASmallSignalStackOfAnotherThread) {
  InNewProcess([] {
    std::promise<void> ready, done;
    std::thread other([&] {
      const SignalStack small(2048);
      ready.set_value();
      done.get_future().wait();
    });
    ready.get_future().wait();
    ExpectTheNextTarget();
    done.set_value();
    other.join();
  });
}

bool IsPermitted() {
  unsigned long permitted = 0;
  return syscall(SYS_arch_prctl, 0x1022, &permitted) == 0 && (permitted >> 18 & 1) != 0;
}

TEST(AmxPermission, IsNotRequestedBeforeATargetIsChosen) {
  InNewProcess([] {
    EXPECT_FALSE(IsPermitted());
    const bool allowed = CpuHasAmx();
    EXPECT_EQ(IsPermitted(), allowed);
  });
}

TEST(AmxPermission, OfAForkedProcessIsNotThatOfItsParent) {
  InNewProcess([] {
    const auto multiplies = [] { return !CpuHasAmx() || Multiplies() ? 0 : 1; };
    EXPECT_EQ(StatusOfChild(multiplies), 0);
    EXPECT_FALSE(IsPermitted());
    EXPECT_EQ(multiplies(), 0);
  });
}

TEST(AmxPermission, HoldsForThreadsFromBeforeTheRequest) {
  InNewProcess([] {
    std::promise<bool> chosen;
    bool in_thread = false;
    std::thread other([&] { in_thread = !chosen.get_future().get() || Multiplies(); });
    chosen.set_value(CpuHasAmx());
    other.join();
    EXPECT_TRUE(in_thread);
  });
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

// A handler that uses tiles itself, and what it found.
std::atomic<int> signals{0}, wrong{0};
Sums of_handler;

void MultiplyInHandler(int) {
  ++signals;
  if (ProductOf(kNative, Target::kAmx, 1) != of_handler) ++wrong;
}

// Multiplies until `count` signals have interrupted it; whether all results were the same.
bool SurvivesSignals(int count) {
  const Sums wanted = ProductOf(kNative, Target::kAmx, 20000);
  signals = 0;
  const itimerval often = {{0, 500}, {0, 500}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  bool same = true;
  while (same && signals < count) same = ProductOf(kNative, Target::kAmx, 20000) == wanted;
  setitimer(ITIMER_REAL, &never, nullptr);
  return same && wrong == 0;
}

TEST(Amx, SignalHandlersLeaveTheTilesOfAKernelAlone) {
  if (!TargetIsSupported(Target::kAmx)) GTEST_SKIP() << "no AMX";
  of_handler = ProductOf(kNative, Target::kAmx, 1);
  const SignalStack large(1 << 16);
  for (const int flags : {0, SA_ONSTACK}) {
    struct sigaction action = {}, old = {};
    action.sa_handler = MultiplyInHandler;
    action.sa_flags = flags | SA_RESTART;
    ASSERT_EQ(sigaction(SIGALRM, &action, &old), 0);
    EXPECT_TRUE(SurvivesSignals(50)) << flags;
    sigaction(SIGALRM, &old, nullptr);
  }
}

#endif

}  // namespace
}  // namespace coreai::testing
#endif
