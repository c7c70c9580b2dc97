#include "memory/rank_group.h"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace coreai {
namespace {

#ifdef __linux__
constexpr double kTimeout = 20;
using Kind = RankGroup::Kind;

// Exchanges bytes that name their rank and place, as a thread of each rank does.
std::string Exchanged(RankGroup* group, std::size_t rank, std::size_t bytes) {
  std::string own(bytes, '\0'), all;
  for (std::size_t i = 0; i < bytes; ++i) own[i] = static_cast<char>('a' + (i * 7 + rank) % 26);
  std::vector<std::string> parts(2);
  group->Exchange(
      Kind::kAllGather, own.data(), bytes,
      [&](const std::vector<const char*>& ranges, std::size_t first, std::size_t count) {
        EXPECT_EQ(first, parts[0].size());
        for (std::size_t r = 0; r < 2; ++r) parts[r].append(ranges[r], count);
      });
  return parts[0] + parts[1];
}

std::string FailureOf(RankGroup* group, Kind kind, std::size_t bytes) {
  const std::string part(bytes, 'x');
  try {
    group->Exchange(kind, part.data(), bytes,
                    [](const std::vector<const char*>&, std::size_t, std::size_t) {});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(RankGroup, RanksGetThePartsOfAll) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, RankGroup::kSlotBytes, 2 * RankGroup::kSlotBytes + 5}) {
    const auto first = RankGroup::Join("test_parts", 0, 2, kTimeout);
    const auto second = RankGroup::Join("test_parts", 1, 2, kTimeout);
    std::string results[2];
    std::thread other([&] { results[1] = Exchanged(second.get(), 1, bytes); });
    results[0] = Exchanged(first.get(), 0, bytes);
    other.join();
    EXPECT_EQ(results[0].size(), 2 * bytes);
    EXPECT_EQ(results[0], results[1]);
    // Of rank 1: 'a' + (0 * 7 + 1), 'a' + (1 * 7 + 1).
    if (bytes > 1) {
      EXPECT_EQ(results[0].substr(bytes, 2), "bi");
    }
  }
}

TEST(RankGroup, ARankThatDoesNotComeIsNamed) {
  const auto first = RankGroup::Join("test_late", 0, 2, 0.2);
  const auto second = RankGroup::Join("test_late", 1, 2, 0.2);
  EXPECT_NE(FailureOf(first.get(), Kind::kAllReduce, 4).find("rank 1 did not come"),
            std::string::npos);
  // The part of rank 0 is there, but nothing after it.
  EXPECT_EQ(FailureOf(second.get(), Kind::kAllReduce, 4), "");
  EXPECT_NE(FailureOf(second.get(), Kind::kAllReduce, 4).find("rank 0 has failed"),
            std::string::npos);
}

TEST(RankGroup, ARankThatHasEndedIsNamed) {
  const auto first = RankGroup::Join("test_ended", 0, 2, kTimeout);
  RankGroup::Join("test_ended", 1, 2, kTimeout).reset();
  EXPECT_NE(FailureOf(first.get(), Kind::kAllReduce, 4).find("rank 1 has ended"),
            std::string::npos);
}

TEST(RankGroup, DifferentCollectivesFail) {
  const auto first = RankGroup::Join("test_calls", 0, 2, kTimeout);
  const auto second = RankGroup::Join("test_calls", 1, 2, kTimeout);
  std::string other;
  std::thread thread([&] { other = FailureOf(second.get(), Kind::kAllGather, 4); });
  const std::string own = FailureOf(first.get(), Kind::kAllReduce, 4);
  thread.join();
  EXPECT_FALSE(own.empty());
  EXPECT_FALSE(other.empty());
  EXPECT_NE((own + other).find("all_gather of 4 bytes"), std::string::npos) << own << other;
}

TEST(RankGroup, WrongGroupsAreRefused) {
  const auto first = RankGroup::Join("test_wrong", 0, 3, kTimeout);
  EXPECT_THROW(RankGroup::Join("test_wrong", 1, 2, kTimeout), std::runtime_error);
  EXPECT_THROW(RankGroup::Join("no/path", 0, 2, kTimeout), std::runtime_error);
  EXPECT_THROW(RankGroup::Join("", 0, 2, kTimeout), std::runtime_error);
}
#endif

}  // namespace
}  // namespace coreai
