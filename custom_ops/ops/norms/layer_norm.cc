#include "kernels/norms/layer_norm.h"

#include "ops/norms/norm_op.h"

namespace coreai {
namespace {

namespace names = schema::layer_norm;
static_assert(names::kInputCount == 3 && names::kAttributeCount == 2, "the declaration changed");
static_assert(schema::skip_layer_norm::kInputCount == 4, "the declaration changed");
static_assert(schema::skip_layer_norm::kAttributeCount == 2, "the declaration changed");

struct LayerNorm {
  using Kernel = LayerNormKernel;
  static constexpr auto* Find = &FindLayerNorm;

  class Parameters {
   public:
    Parameters(const Checker& check, const KernelContext& context, std::size_t index,
               const Shape& input, std::size_t first, DType dtype)
        : affine_(check, "scale", context.Input(index), "bias", context.Input(index + 1), input,
                  first, dtype) {}

    bool wide() const { return affine_.wide(); }
    std::size_t run() const { return affine_.run(); }
    void Apply(Kernel kernel, const NormRows& rows) const {
      kernel({rows.input, affine_.first.Row(rows.row), affine_.second.Row(rows.row), rows.output,
              rows.count, rows.row_size, rows.eps});
    }

   private:
    RowParameterPair affine_;
  };
};

}  // namespace

const OpDefinition kLayerNormOp =
    Define<NormOp<LayerNorm, false>>(names::kComposite, ShapeOfFirstInput);
const OpDefinition kSkipLayerNormOp =
    Define<NormOp<LayerNorm, true>>(schema::skip_layer_norm::kComposite, ShapesOfFirstInput);

}  // namespace coreai
