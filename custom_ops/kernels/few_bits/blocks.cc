#include "kernels/few_bits/blocks.h"

#include <algorithm>

#include "kernels/few_bits/pack.h"

namespace coreai {
namespace {

// A field lies within two bytes wherever it begins.
constexpr std::int32_t kLargestField = 9;
// Integers of this magnitude are numbers of float.
constexpr std::int64_t kLargestFactor = 1 << 24;

}  // namespace

std::string BlockCodes::Fault(std::size_t block_bytes, std::size_t bits) const {
  const auto* const last = table + rows * width;
  const auto* const largest = std::max_element(table, last);
  if (largest != last && *largest >> bits != 0) {
    return "table has the code " + std::to_string(*largest);
  }
  const auto bits_of_block = static_cast<std::int64_t>(block_bytes) * 8;
  const std::int32_t* next = layout;
  for (std::size_t i = 0; i < numbers(); ++i) {
    ++next;
    for (std::size_t f = 0; f < fields; ++f, next += 3) {
      const std::int64_t place = next[0], size = next[1];
      if (size < 1 || size > kLargestField || place < 0 || place > bits_of_block - size) {
        return "layout has a field of " + std::to_string(size) + " bits at " +
               std::to_string(place) + " of " + std::to_string(bits_of_block);
      }
    }
    const auto [least, most] = RangeOf(i);
    const bool is_factor = i < groups;
    const std::int64_t low = is_factor ? -kLargestFactor : 0;
    const std::int64_t end = is_factor ? kLargestFactor : static_cast<std::int64_t>(rows);
    if (least < low || most >= end) {
      return "layout has numbers from " + std::to_string(least) + " to " + std::to_string(most) +
             ", expected " + std::to_string(low) + " to " + std::to_string(end - 1);
    }
  }
  return "";
}

BlockCodes::Range BlockCodes::RangeOf(std::size_t index) const {
  const std::int32_t* next = layout + index * (1 + 3 * fields);
  Range range = {*next, *next};
  ++next;
  for (std::size_t f = 0; f < fields; ++f, next += 3) {
    const std::int64_t product = std::int64_t{next[2]} * ((1 << next[1]) - 1);
    range.least += std::min<std::int64_t>(product, 0);
    range.most += std::max<std::int64_t>(product, 0);
  }
  return range;
}

std::int64_t BlockCodes::Number(const std::uint8_t* block, std::size_t index) const {
  const std::int32_t* next = layout + index * (1 + 3 * fields);
  std::int64_t number = *next++;
  for (std::size_t f = 0; f < fields; ++f, next += 3) {
    const auto place = static_cast<std::size_t>(next[0]), size = static_cast<std::size_t>(next[1]);
    number += static_cast<std::int64_t>(BitsAt(block, place, size)) * next[2];
  }
  return number;
}

unsigned BlockCodes::Code(const std::uint8_t* block, std::size_t value) const {
  const std::size_t place = groups + value / width;
  const auto row = static_cast<std::size_t>(Number(block, place));
  const auto other = static_cast<std::size_t>(Number(block, place + selected()));
  return table[row * width + value % width] | table[other * width + value % width];
}

void BlockCodes::Unpack(const std::uint8_t* block, std::size_t bits, std::uint8_t* stream) const {
  std::uint8_t codes[kBlockValues];
  for (std::size_t i = 0; i < selected(); ++i) {
    const auto row = static_cast<std::size_t>(Number(block, groups + i));
    const auto other = static_cast<std::size_t>(Number(block, groups + i + selected()));
    for (std::size_t j = 0; j < width; ++j) {
      codes[i * width + j] = table[row * width + j] | table[other * width + j];
    }
  }
  const std::size_t per_byte = 8 / bits;
  for (std::size_t i = 0; i < kBlockValues / per_byte; ++i) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < per_byte; ++j) byte |= codes[i * per_byte + j] << j * bits;
    stream[i] = static_cast<std::uint8_t>(byte);
  }
}

}  // namespace coreai
