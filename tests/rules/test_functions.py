"""The function finders find what they should, so that the size rules mean something."""

from __future__ import annotations

from tests.rules.functions import cpp_functions, python_functions

PYTHON = '''
@decorated
def outer(
    a,
):
    """Say."""
    def inner():
        return 1
    return inner


class C:
    async def method(self):
        pass
'''

CPP = """#include <x>  // {
#define BODY(x) { \\
  x }

namespace coreai {
namespace {

constexpr int kTable[] = {1, 2, 3};
struct Point {
  int x = 0;
  explicit Point(int v) : x{v}, y_{v} {
    Check(v);
  }
  int Get() const noexcept { return x; }
};

// void Commented() {
template <typename T, size_t N>
HWY_ATTR void Kernel(const T* in,
                     T* out, int n = 3) {
  for (int i = 0; i < n; ++i) {
    if (i == '{') { continue; }
    auto f = [&](int k) { return k; };
  }
  const char* text = "}{";
}

}  // namespace

bool operator==(const Point& a, const Point& b) {
  return a.x == b.x;
}

TEST(Suite, Name) {
  EXPECT_EQ(1, 1);
  EXPECT_EQ(1, 1);
}
}  // namespace coreai
extern "C" {
int Exported(void) {
  return 1'000;
}
}
"""


def test_python_functions_with_nested_ones_and_methods() -> None:
    found = {f.name: f.length for f in python_functions(PYTHON)}
    assert found == {"outer": 7, "inner": 2, "method": 2}


def test_cpp_functions_and_nothing_else() -> None:
    found = {f.name: f.length for f in cpp_functions(CPP)}
    assert found == {
        "Point": 3,
        "Get": 1,
        "Kernel": 9,
        "operator==": 3,
        "TEST": 4,
        "Exported": 3,
    }


def test_cpp_lines_are_those_of_the_file() -> None:
    lines = CPP.splitlines()
    for function in cpp_functions(CPP):
        assert lines[function.line - 1].strip(), function
        assert lines[function.line + function.length - 2].rstrip().endswith("}"), function
