#include <cstring>
#include <string>
#include <vector>

#include "ops/checks.h"
#include "ops/convert.h"
#include "ops/op_list.h"
#include "ops/row_split.h"

namespace coreai {
namespace {

namespace names = schema::kv_cache_update;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 0, "the declaration changed");
enum Axis : std::size_t { kBatch, kHeads, kLength, kDim, kRank };

void Copy(char* to, const char* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

class KvCacheUpdateOp : public Op {
 public:
  KvCacheUpdateOp(const KernelInfo& info, DType dtype, Target) : check_(info.op()), dtype_(dtype) {}

  void Compute(const KernelContext& context) const override {
    const TensorView cache = context.Input(names::kCacheInput);
    const TensorView update = context.Input(names::kUpdateInput);
    CheckShapes(cache, update);
    const std::vector<std::size_t> starts =
        ReadPositions(context.Input(names::kPositionInput), cache.shape, update.shape);
    auto* const output = static_cast<char*>(context.Output(0, cache.shape));
    const auto heads = static_cast<std::size_t>(cache.shape[kHeads]);
    const std::size_t row = static_cast<std::size_t>(cache.shape[kDim]) * SizeOf(dtype_);
    const std::size_t places = static_cast<std::size_t>(cache.shape[kLength]) * row;
    const std::size_t length = static_cast<std::size_t>(update.shape[kLength]) * row;
    if (places == 0) return;
    // The caller may have bound the output to the memory of the cache, which needs no copy then.
    const bool in_place = output == cache.data;
    const std::size_t work = (in_place ? length : places) / SizeOf(dtype_);
    const std::size_t all = static_cast<std::size_t>(cache.shape[kBatch]) * heads;
    SplitRows(context, all, work, all, [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        const char* const from = static_cast<const char*>(cache.data) + i * places;
        char* const to = output + i * places;
        const std::size_t start = starts[i / heads % starts.size()] * row;
        if (!in_place) {
          Copy(to, from, start);
          Copy(to + start + length, from + start + length, places - start - length);
        }
        Copy(to + start, static_cast<const char*>(update.data) + i * length, length);
      }
    });
  }

 private:
  void CheckShapes(const TensorView& cache, const TensorView& update) const {
    check_.Require("cache", cache, dtype_);
    check_.Require("update", update, dtype_);
    const Shape& c = cache.shape;
    const Shape& u = update.shape;
    if (c.size() != kRank || u.size() != kRank || c[kBatch] != u[kBatch] ||
        c[kHeads] != u[kHeads] || c[kDim] != u[kDim]) {
      check_.Fail(
          "cache and update must have rank 4 and differ in the axis before the last only: "
          "cache " +
          ToString(c) + ", update " + ToString(u));
    }
  }

  /// The start of the update, one for all batch rows or one per batch row.
  std::vector<std::size_t> ReadPositions(const TensorView& position, const Shape& cache,
                                         const Shape& update) const {
    check_.RequireIndex("position", position);
    const std::size_t count = ElementCount(position.shape);
    if (count != 1 && (position.shape.size() > 2 || count != static_cast<std::size_t>(cache[0]))) {
      check_.Fail("input position of shape " + ToString(position.shape) +
                  " must have one element, or one for each batch row of cache of shape " +
                  ToString(cache));
    }
    std::vector<std::size_t> starts(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t start = ReadIndex(position.type, position.data, i);
      if (start < 0 || start > cache[kLength] - update[kLength]) {
        check_.Fail("element " + std::to_string(i) + " of input position is " +
                    std::to_string(start) + ", from where update of shape " + ToString(update) +
                    " does not fit into cache of shape " + ToString(cache));
      }
      starts[i] = static_cast<std::size_t>(start);
    }
    return starts;
  }

  Checker check_;
  DType dtype_;
};

}  // namespace

const OpDefinition kKvCacheUpdateOp =
    Define<KvCacheUpdateOp>(names::kComposite, ShapeOfFirstInput).InPlace();

}  // namespace coreai
