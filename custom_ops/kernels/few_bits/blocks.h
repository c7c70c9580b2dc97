#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace coreai {

/// Values of a block.
inline constexpr std::size_t kBlockValues = 256;

/// Blocks whose numbers select the codes of several values at once, as types of GGUF have them. A
/// number is `first` plus the fields of bits of the block times their factors: first those by which
/// the scale of the block is multiplied, one for each group, then the rows of the table that are
/// the codes, then those of the bits that are set in these codes.
struct BlockCodes {
  const std::uint8_t* table;   ///< [rows, width]
  const std::int32_t* layout;  ///< [numbers, 1 + 3 * fields]: first, then place, size and factor
  std::size_t rows;            ///<
  std::size_t width;           ///< divides kBlockValues
  std::size_t fields;          ///<
  std::size_t groups;          ///< of a block; divides kBlockValues

  /// Rows that are the codes of a block.
  std::size_t selected() const { return kBlockValues / width; }
  std::size_t numbers() const { return groups + 2 * selected(); }

  /// Why numbers of blocks of this size cannot be read, or select no row or no code of `bits` bits;
  /// empty if they always do. The functions below require that it is empty.
  std::string Fault(std::size_t block_bytes, std::size_t bits) const;

  /// The least and the largest number at an index that any block may have.
  struct Range {
    std::int64_t least, most;
  };
  Range RangeOf(std::size_t index) const;

  std::int64_t Number(const std::uint8_t* block, std::size_t index) const;

  /// The code of a value of a block.
  unsigned Code(const std::uint8_t* block, std::size_t value) const;

  /// Writes all codes of a block as a little-endian stream of codes of 8, 4 or 2 bits.
  void Unpack(const std::uint8_t* block, std::size_t bits, std::uint8_t* stream) const;
};

}  // namespace coreai
