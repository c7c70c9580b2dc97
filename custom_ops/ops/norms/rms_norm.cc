#include "kernels/norms/rms_norm.h"

#include "ops/norms/norm_op.h"

namespace coreai {
namespace {

namespace names = schema::rms_norm;
static_assert(names::kInputCount == 2 && names::kAttributeCount == 2, "the declaration changed");
static_assert(schema::skip_rms_norm::kInputCount == 3, "the declaration changed");
static_assert(schema::skip_rms_norm::kAttributeCount == 2, "the declaration changed");

struct RmsNorm {
  using Kernel = RmsNormKernel;
  static constexpr auto* Find = &FindRmsNorm;

  class Parameters {
   public:
    Parameters(const Checker& check, const KernelContext& context, std::size_t index,
               const Shape& input, std::size_t first, DType dtype)
        : Parameters(check, context.Input(index), input, first, dtype) {}

    bool wide() const { return scale_.wide(); }
    std::size_t run() const { return scale_.run(); }
    void Apply(Kernel kernel, const NormRows& rows) const {
      kernel({rows.input, scale_.Row(rows.row), rows.output, rows.count, rows.row_size, rows.eps,
              round_first_});
    }

   private:
    Parameters(const Checker& check, const TensorView& scale, const Shape& input, std::size_t first,
               DType dtype)
        : scale_(check, "scale", scale, input, first, dtype, false),
          round_first_(scale.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {}

    RowParameter scale_;
    bool round_first_;  // a float32 scale is applied before rounding to the output's type
  };
};

}  // namespace

const OpDefinition kRmsNormOp =
    Define<NormOp<RmsNorm, false>>(names::kComposite, ShapeOfFirstInput);
const OpDefinition kSkipRmsNormOp =
    Define<NormOp<RmsNorm, true>>(schema::skip_rms_norm::kComposite, ShapesOfFirstInput);

}  // namespace coreai
