#include <chrono>
#include <cstdio>
#include <cstdlib>
__global__ void empty() {}
int main(int, char **arguments) {
  int count = atoi(arguments[1]);
  empty<<<1, 32>>>();
  cudaDeviceSynchronize();
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; i++) empty<<<1, 32>>>();
  cudaDeviceSynchronize();
  auto spent = std::chrono::steady_clock::now() - start;
  printf("%lld\n", (long long)std::chrono::nanoseconds(spent).count());
}
