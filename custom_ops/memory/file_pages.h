#pragma once

#include <cstddef>

namespace coreai {

/// Takes the pages of a mapped file that lie in [data, data + size) from the memory of the process,
/// on Linux. They stay in the system's cache of files, from where the next read brings them back.
///
/// Nothing happens to other memory, where the contents would be lost: the heap, and pages of a
/// private mapping that were written.
void ReleaseFilePages(const void* data, std::size_t size) noexcept;

}  // namespace coreai
