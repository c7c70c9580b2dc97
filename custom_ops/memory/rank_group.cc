#include "memory/rank_group.h"

#include <stdexcept>

#ifdef __linux__
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <tuple>
#include <utility>
#endif

namespace coreai {

#ifndef __linux__
struct RankGroup::Header {};
struct RankGroup::Seat {};
std::shared_ptr<RankGroup> RankGroup::Join(const std::string&, std::size_t, std::size_t, double) {
  throw std::runtime_error("groups of ranks are supported on Linux only");
}
RankGroup::~RankGroup() = default;
void RankGroup::Exchange(Kind, const char*, std::size_t, const Use&) {}
#else
namespace {

constexpr char kMark[16] = "coreai ranks 1\n";
constexpr std::size_t kMostRanks = 64, kMostName = 200, kLine = 64;
// How long a rank looks for the others without sleeping: an exchange of ranks that come at the same
// time takes a few microseconds, and waking a sleeper takes 50.
constexpr auto kSpinning = std::chrono::microseconds(30);
// How often a sleeping rank looks whether the others are alive.
constexpr long kSleepNanoseconds = 20'000'000;

using Clock = std::chrono::steady_clock;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` is `value`, for a while.
void SleepOn(std::atomic<std::uint32_t>* word, std::uint32_t value) {
  const timespec time = {0, kSleepNanoseconds};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void Wake(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The lock of a rank is one byte of the file. It belongs to the open file, not to the process, so
// that the ranks may be threads of one process.
struct flock LockOf(std::size_t rank, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(rank);
  lock.l_len = 1;
  return lock;
}

std::string SystemError() { return std::strerror(errno); }

void CheckName(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (name.empty() || name.size() > kMostName || !std::all_of(name.begin(), name.end(), is_plain)) {
    throw std::runtime_error(
        "the name of a group of ranks must be 1 to 200 letters, digits, '_', "
        "'-' and '.', got \"" +
        name + "\"");
  }
}

}  // namespace

struct RankGroup::Header {
  char mark[sizeof(kMark)];
  std::uint32_t ranks;
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> failed;  // 1 + the rank that failed first
  std::atomic<std::uint32_t> bell;    // rung by each arrival; ranks sleep on it
  std::atomic<std::uint32_t> sleepers;
};

struct alignas(kLine) RankGroup::Seat {
  std::atomic<std::uint64_t> arrived;  // the last turn whose part is in the slot
  std::atomic<std::uint32_t> is_taken;
  std::uint32_t kinds[2];  // what the rank runs in a turn, by the turn's buffer
  std::uint64_t bytes[2];
};

std::shared_ptr<RankGroup> RankGroup::Join(const std::string& name, std::size_t rank,
                                           std::size_t ranks, double timeout) {
  static std::mutex mutex;
  static auto& groups =
      *new std::map<std::tuple<std::string, std::size_t, std::size_t>, std::weak_ptr<RankGroup> >;
  CheckName(name);
  if (ranks > kMostRanks || rank >= ranks) {
    throw std::runtime_error("a group has at most " + std::to_string(kMostRanks) +
                             " ranks, got rank " + std::to_string(rank) + " of " +
                             std::to_string(ranks));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<RankGroup>& place = groups[{name, rank, ranks}];
  std::shared_ptr<RankGroup> group = place.lock();
  if (group == nullptr || group->header_->failed.load() != 0) {
    group.reset(new RankGroup(name, rank, ranks, timeout));
    place = group;
  }
  return group;
}

RankGroup::RankGroup(std::string name, std::size_t rank, std::size_t ranks, double timeout)
    : name_(std::move(name)),
      path_("/dev/shm/coreai." + name_),
      rank_(rank),
      ranks_(ranks),
      timeout_(timeout) {
  try {
    while (!Enter()) {
      close(file_);
    }
  } catch (...) {
    if (header_ != nullptr) munmap(header_, FileBytes());
    if (file_ >= 0) close(file_);
    throw;
  }
}

// Takes a seat in the file; false if the file was removed or is one that ended ranks have left.
bool RankGroup::Enter() {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) throw std::runtime_error("cannot open " + path_ + ": " + SystemError());
  // Released with the file; ranks that enter or leave do so one after the other.
  struct stat status = {};
  if (flock(file_, LOCK_EX) != 0 || fstat(file_, &status) != 0) {
    throw std::runtime_error("cannot lock " + path_ + ": " + SystemError());
  }
  if (status.st_nlink == 0) return false;
  if (status.st_uid != geteuid()) {
    throw std::runtime_error(path_ + " belongs to another user; choose another name of the group");
  }
  const bool is_new = status.st_size == 0;
  if (!is_new) {
    bool has_ranks = false;
    for (std::size_t r = 0; r < kMostRanks; ++r) has_ranks = has_ranks || IsHeld(r);
    if (!has_ranks) {
      unlink(path_.c_str());
      return false;
    }
  }
  if (is_new) {
    // Reserved now: a write to memory that is not there would end the process.
    const int fault = posix_fallocate(file_, 0, static_cast<off_t>(FileBytes()));
    if (fault != 0) {
      unlink(path_.c_str());
      throw std::runtime_error("no shared memory for " + std::to_string(FileBytes()) +
                               " bytes: " + std::strerror(fault));
    }
  } else if (static_cast<std::size_t>(status.st_size) != FileBytes()) {
    throw std::runtime_error("group \"" + name_ + "\" has another number of ranks than " +
                             std::to_string(ranks_));
  }
  void* memory = mmap(nullptr, FileBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path_ + ": " + SystemError());
  header_ = static_cast<Header*>(memory);
  if (is_new) Begin();
  TakeSeat();
  flock(file_, LOCK_UN);
  return true;
}

void RankGroup::Begin() {
  new (header_) Header{};
  for (std::size_t r = 0; r < ranks_; ++r) new (&SeatOf(r)) Seat{};
  header_->ranks = static_cast<std::uint32_t>(ranks_);
  std::memcpy(header_->mark, kMark, sizeof(kMark));
}

void RankGroup::TakeSeat() {
  const std::string seat = "rank " + std::to_string(rank_) + " of group \"" + name_ + "\"";
  if (std::memcmp(header_->mark, kMark, sizeof(kMark)) != 0 || header_->ranks != ranks_) {
    throw std::runtime_error(path_ + " is not the file of a group of " + std::to_string(ranks_) +
                             " ranks");
  }
  if (IsHeld(rank_)) throw std::runtime_error(seat + " runs in another session already");
  if (SeatOf(rank_).is_taken.load() != 0 || header_->failed.load() != 0) {
    throw std::runtime_error(seat + ": a rank that had joined has ended; start all ranks again");
  }
  struct flock lock = LockOf(rank_, F_WRLCK);
  if (fcntl(file_, F_OFD_SETLK, &lock) != 0) {
    throw std::runtime_error("cannot lock " + seat + ": " + SystemError());
  }
  SeatOf(rank_).is_taken.store(1);
  if (header_->joined.fetch_add(1) + 1 == ranks_) unlink(path_.c_str());
}

RankGroup::~RankGroup() {
  RemoveName();
  munmap(header_, FileBytes());
  close(file_);
}

// Removes the name of a group that not all have joined: others that have see that this rank has
// ended, and later ones begin anew.
void RankGroup::RemoveName() {
  flock(file_, LOCK_EX);
  struct stat status = {};
  if (header_->joined.load() != ranks_ && fstat(file_, &status) == 0 && status.st_nlink != 0) {
    unlink(path_.c_str());
  }
  flock(file_, LOCK_UN);
}

void RankGroup::Exchange(Kind kind, const char* own, std::size_t bytes, const Use& use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<const char*> parts(ranks_);
  std::size_t first = 0;
  do {
    const std::size_t count = std::min(bytes - first, kSlotBytes);
    const std::uint64_t turn = ++turn_;
    Seat& seat = SeatOf(rank_);
    seat.kinds[turn % 2] = static_cast<std::uint32_t>(kind);
    seat.bytes[turn % 2] = bytes;
    // No rank reads this buffer any more: each of them came to the last turn after it had.
    if (count != 0) std::memcpy(SlotOf(rank_, turn), own + first, count);
    seat.arrived.store(turn);
    Ring();
    Await(turn);
    CheckCalls(kind, bytes, turn);
    for (std::size_t r = 0; r < ranks_; ++r) parts[r] = SlotOf(r, turn);
    use(parts, first, count);
    first += count;
  } while (first < bytes);
}

void RankGroup::Await(std::uint64_t turn) {
  const auto all_are_there = [&] {
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (SeatOf(r).arrived.load(std::memory_order_acquire) < turn) return false;
    }
    return true;
  };
  const bool may_spin = std::thread::hardware_concurrency() >= ranks_;
  const auto start = Clock::now();
  while (may_spin && Clock::now() - start < kSpinning) {
    for (int i = 0; i < 32; ++i) {
      if (all_are_there()) return;
      Pause();
    }
  }
  for (;;) {
    const std::uint32_t rung = header_->bell.load();
    if (all_are_there()) return;
    CheckOthers();
    if (Clock::now() - start > std::chrono::duration<double>(timeout_)) {
      std::string late;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (SeatOf(r).arrived.load() < turn) late += (late.empty() ? "" : ", ") + std::to_string(r);
      }
      Fail("rank " + late + " did not come within " + std::to_string(timeout_) + " s");
    }
    header_->sleepers.fetch_add(1);
    SleepOn(&header_->bell, rung);
    header_->sleepers.fetch_sub(1);
  }
}

void RankGroup::CheckOthers() {
  const std::uint32_t failed = header_->failed.load();
  if (failed != 0) Fail("rank " + std::to_string(failed - 1) + " has failed");
  for (std::size_t r = 0; r < ranks_; ++r) {
    if (r != rank_ && SeatOf(r).is_taken.load() != 0 && !IsHeld(r)) {
      Fail("rank " + std::to_string(r) + " has ended");
    }
  }
}

void RankGroup::CheckCalls(Kind kind, std::size_t bytes, std::uint64_t turn) {
  const auto described = [](std::uint32_t of, std::uint64_t size) {
    const bool reduces = of == static_cast<std::uint32_t>(Kind::kAllReduce);
    return (reduces ? "all_reduce of " : "all_gather of ") + std::to_string(size) + " bytes";
  };
  for (std::size_t r = 0; r < ranks_; ++r) {
    const Seat& seat = SeatOf(r);
    const std::uint32_t theirs = seat.kinds[turn % 2];
    if (theirs == static_cast<std::uint32_t>(kind) && seat.bytes[turn % 2] == bytes) continue;
    Fail("rank " + std::to_string(r) + " runs " + described(theirs, seat.bytes[turn % 2]) +
         ", rank " + std::to_string(rank_) + " " +
         described(static_cast<std::uint32_t>(kind), bytes));
  }
}

void RankGroup::Fail(const std::string& why) {
  std::uint32_t none = 0;
  header_->failed.compare_exchange_strong(none, static_cast<std::uint32_t>(rank_ + 1));
  Ring();
  RemoveName();
  throw std::runtime_error("group \"" + name_ + "\": " + why);
}

void RankGroup::Ring() {
  header_->bell.fetch_add(1);
  if (header_->sleepers.load() != 0) Wake(&header_->bell);
}

// A lock of this open file does not count as held.
bool RankGroup::IsHeld(std::size_t rank) const {
  struct flock lock = LockOf(rank, F_WRLCK);
  return fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

RankGroup::Seat& RankGroup::SeatOf(std::size_t rank) const {
  static_assert(sizeof(Header) <= kLine && sizeof(Seat) == kLine, "a line for each");
  char* const start = reinterpret_cast<char*>(header_) + kLine;
  return reinterpret_cast<Seat*>(start)[rank];
}

char* RankGroup::SlotOf(std::size_t rank, std::uint64_t turn) const {
  const std::size_t slot = turn % 2 * ranks_ + rank;
  return reinterpret_cast<char*>(header_) + kLine * (1 + ranks_) + slot * kSlotBytes;
}

std::size_t RankGroup::FileBytes() const { return kLine * (1 + ranks_) + 2 * ranks_ * kSlotBytes; }
#endif

}  // namespace coreai
