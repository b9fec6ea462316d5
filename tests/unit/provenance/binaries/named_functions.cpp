
namespace at { namespace native {
static int before_NAME(int x) { return x + 1; }
int NAME(int x) { return before_NAME(x); }
static const char* where_NAME() { return __FILE__; }
const char* place_NAME() { return where_NAME(); }
}}
