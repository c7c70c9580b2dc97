#pragma once

#include <cstddef>
#include <cstdint>

namespace coreai {

/// How ranks on several hosts reach each other: functions of the program, at an address that a
/// session gets as `coreai.group_transport`. It outlives the session.
struct RankTransport {
  /// Sends `bytes` bytes of `own` to all ranks, and writes the parts of all, rank by rank, to
  /// `parts`. `kind` is a RankGroup::Kind. Returns 1, or 0 after it has written a text that says
  /// why not, which ends with 0, to the `why_bytes` bytes of `why`.
  int (*exchange)(std::uint32_t kind, const void* own, std::size_t bytes, void* parts,
                  double timeout, char* why, std::size_t why_bytes);
  std::uint64_t rank, ranks;
};

}  // namespace coreai
