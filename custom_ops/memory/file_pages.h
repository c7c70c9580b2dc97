#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace coreai {

/// Takes the pages of a mapped file that lie in [data, data + size) from the memory of the process,
/// on Linux. They stay in the system's cache of files, from where the next read brings them back.
///
/// Nothing happens to other memory, where the contents would be lost: the heap, and pages of a
/// private mapping that were written.
void ReleaseFilePages(const void* data, std::size_t size) noexcept;

/// Identifies bytes by their place in a file and by the file: its device and inode, its size, and
/// the times of its last changes, of which one is set by nobody but the system.
using FilePlace = std::array<std::uint64_t, 8>;

/// The place of [data, data + size), on Linux 6.11 and later. None if this is no part of one mapped
/// file as it is now, or the file has changed in the last two seconds: another change might have
/// the same time.
std::optional<FilePlace> PlaceInFile(const void* data, std::size_t size) noexcept;

}  // namespace coreai
