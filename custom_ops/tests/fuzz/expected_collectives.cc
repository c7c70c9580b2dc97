#include "fuzz/expected_collectives.h"

#include <cstddef>
#include <cstdint>

namespace coreai::fuzz {

Arrays AllReduce(const Call& call) {
  Array y = call.In(0);
  const std::size_t ranks = y.count(0), size = y.data.size() / ranks;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t r = 1; r < ranks; ++r) y.data[i] += call.In(0).data[r * size + i];
    for (std::size_t r = 1; r < ranks; ++r) y.data[r * size + i] = y.data[i];
  }
  return {y};
}

Arrays AllGather(const Call& call) {
  const Array& x = call.In(0);
  const std::size_t ranks = x.count(0), row = x.count(x.shape.size() - 1);
  const std::size_t rows = row == 0 ? 0 : x.data.size() / ranks / row;
  Array y = x;
  y.shape.back() *= static_cast<std::int64_t>(ranks);
  y.data.clear();
  for (std::size_t i = 0; i < ranks * rows * ranks; ++i) {
    const std::size_t part = i % ranks * rows + i / ranks % rows;
    const auto first = x.data.begin() + static_cast<std::ptrdiff_t>(part * row);
    y.data.insert(y.data.end(), first, first + static_cast<std::ptrdiff_t>(row));
  }
  return {y};
}

}  // namespace coreai::fuzz
