#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace coreai {

/// The ranks of a model that is spread over processes of one machine, or over threads of a process.
/// They exchange their parts in shared memory, a file of `/dev/shm`:
///
///     Header and a Seat for each rank
///     two buffers, each with a slot of kSlotBytes for each rank
///
/// The last rank that joins removes the file's name, so that nothing is left when the processes
/// end, however they end. Each rank holds a lock of the file, which the kernel releases with the
/// process: a rank whose lock is free has ended. Functions throw std::runtime_error.
class RankGroup {
 public:
  /// Which collective a rank runs; ranks that meet in different ones have different files.
  enum class Kind : std::uint32_t { kAllReduce = 1, kAllGather = 2 };

  /// Gets the parts of all ranks, of `count` bytes each, that begin `first` bytes from their start.
  using Use = std::function<void(const std::vector<const char*>& parts, std::size_t first,
                                 std::size_t count)>;

  /// Bytes of a part that are exchanged at a time, a multiple of every element's size.
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;

  /// Joins the group `name` as `rank` of `ranks`, without waiting for the others; the group that
  /// this process has joined, if it has. An exchange waits for at most `timeout` seconds.
  static std::shared_ptr<RankGroup> Join(const std::string& name, std::size_t rank,
                                         std::size_t ranks, double timeout);

  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  ~RankGroup();

  /// Exchanges parts of equal size: calls `use` for one range after the other, once all ranks are
  /// there. `use` may overwrite that range of `own`. After an error, the group has failed for all
  /// ranks.
  void Exchange(Kind kind, const char* own, std::size_t bytes, const Use& use);

 private:
  struct Header;
  struct Seat;

  RankGroup(std::string name, std::size_t rank, std::size_t ranks, double timeout);
  bool Enter();
  void RemoveName();
  void Begin();
  void TakeSeat();
  void Await(std::uint64_t turn);
  void CheckOthers();
  void CheckCalls(Kind kind, std::size_t bytes, std::uint64_t turn);
  [[noreturn]] void Fail(const std::string& why);
  void Ring();
  bool IsHeld(std::size_t rank) const;
  Seat& SeatOf(std::size_t rank) const;
  char* SlotOf(std::size_t rank, std::uint64_t turn) const;
  std::size_t FileBytes() const;

  const std::string name_, path_;
  const std::size_t rank_, ranks_;
  const double timeout_;
  std::mutex mutex_;
  int file_ = -1;
  Header* header_ = nullptr;
  std::uint64_t turn_ = 0;
};

}  // namespace coreai
