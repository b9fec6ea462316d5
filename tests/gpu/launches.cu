#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>
__global__ void empty() {}
static void launch(int count) {
  for (int i = 0; i < count; i++) empty<<<1, 32>>>();
}
static void use(int count) {
  launch(1);
  cudaDeviceSynchronize();
  auto start = std::chrono::steady_clock::now();
  launch(count);
  if (cudaDeviceSynchronize() != cudaSuccess) exit(90);
  auto spent = std::chrono::steady_clock::now() - start;
  printf("%lld %d\n", (long long)std::chrono::nanoseconds(spent).count(), (int)getpid());
  fflush(stdout);
}
static int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
int main(int argument_count, char **arguments) {
  int count = atoi(arguments[1]);
  const char *end = arguments[2];
  if (strcmp(end, "fork_before") == 0) {
    pid_t child = fork();
    use(child == 0 ? count : 2 * count);
    return child == 0 ? 0 : wait_for(child);
  }
  use(count);
  if (strcmp(end, "fork_after") == 0) {
    pid_t child = fork();
    if (child == 0) _exit(6);
    return wait_for(child);
  }
  if (strcmp(end, "fork_exit") == 0) {
    pid_t child = fork();
    if (child == 0) { alarm(10); exit(7); }
    return wait_for(child);
  }
  if (strcmp(end, "wait") == 0) for (;;) pause();
  if (strcmp(end, "launch") == 0) for (;;) launch(1000);
  if (strcmp(end, "abort") == 0) abort();
  if (strcmp(end, "fault") == 0) *(volatile int *)8 = 1;
  if (strcmp(end, "leave") == 0) { usleep(1000000); _exit(3); }
  if (strcmp(end, "reset") == 0) { cudaDeviceReset(); return 0; }
  return atoi(end);
}
