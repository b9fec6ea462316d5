// One round of an execution graph: when each node ends. Compiled into one library with the scanner.

#include <stdint.h>

// `order` has `order_count` of `count` nodes, each after all that it depends on: the three nodes of `before`
// (int64[3][count]), each with a lag. Their times are replaced, those of the other nodes are given.
void simulate_nodes(const int64_t *order, int64_t order_count, int64_t count, const int64_t *before,
                    const int64_t *lag_ns, const int64_t *duration_ns, int64_t *time_ns) {
  for (int64_t at = 0; at < order_count; ++at) {
    const int64_t node = order[at];
    int64_t came_ns = time_ns[before[node]] + lag_ns[node];
    for (int64_t slot = node + count; slot < 3 * count; slot += count) {
      const int64_t other_ns = time_ns[before[slot]] + lag_ns[slot];
      came_ns = other_ns > came_ns ? other_ns : came_ns;
    }
    time_ns[node] = came_ns + duration_ns[node];
  }
}
