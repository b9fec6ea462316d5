/* Programs "of CUDA": load the recorder as the driver does and make activities of the fake CUPTI.
 *
 *     program MODE [ARGUMENT]
 *
 * Prints "hello", and what it did to standard error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint64_t START_NS = UINT64_C(1790857026000000000);

static void (*cu_init)(void), (*context)(void), (*device_reset)(void), (*module_load)(void);
static uint32_t (*call)(int, uint32_t, uint64_t, uint64_t, uint32_t);
static void (*kernel)(const char *, uint64_t, uint64_t);
static void (*copy)(uint8_t, uint8_t, uint8_t, uint64_t, uint64_t, uint64_t);
static void (*set)(uint64_t, uint64_t, uint64_t);
static void (*migration)(int, uint64_t, uint64_t, uint64_t);
static void (*overhead)(uint64_t, uint64_t);

static void *need(void *found)
{
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    return found;
}

#define FIND(name) name = need(dlsym(cupti, "fake_" #name))

static void use_cuda(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (getenv("FAKE_DRIVER") != NULL) need(dlopen(getenv("FAKE_DRIVER"), RTLD_NOW));
    void *cupti = need(dlopen(getenv("FAKE_CUPTI"), RTLD_NOW));
    FIND(cu_init);
    FIND(context);
    FIND(device_reset);
    FIND(module_load);
    FIND(call);
    FIND(kernel);
    FIND(copy);
    FIND(set);
    FIND(migration);
    FIND(overhead);
    if (path == NULL) return;
    int (*initialize)(void) = need(dlsym(need(dlopen(path, RTLD_NOW)), "InitializeInjection"));
    if (initialize() != 1) exit(98);
    if (getenv("FAKE_SUBSCRIBE") != NULL) return;
    cu_init();
    context();
}

static void launch(int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t start = START_NS + 10000U * (uint64_t)i + 123;
        kernel(i % 2 == 0 ? "_Z3addiPfS_" : "_ZN12_GLOBAL__N_15innerEPf", start, start + 1001);
    }
}

static void everything(void)
{
    launch(3);
    call(0, 10, START_NS, START_NS + 10, 0);
    call(0, 120, START_NS - 9000, START_NS - 8000, 0);
    /* Before it loads code through the driver, its calls of the driver do not count. */
    call(1, 307, START_NS + 40000, START_NS + 41000, 0);
    module_load();
    module_load();
    call(1, 307, START_NS + 50000, START_NS + 51000, 0);
    /* The runtime's own call of the driver. */
    call(1, 307, START_NS - 8800, START_NS - 8700, 0);
    copy(1, 1, 3, 4096, START_NS + 60000, START_NS + 61000);
    copy(8, 3, 3, 8192, START_NS + 62000, START_NS + 63000);
    set(512, START_NS + 64000, START_NS + 65000);
    migration(1, 2097152, START_NS + 70000, START_NS + 71500);
    migration(2, 65536, START_NS + 72000, START_NS + 72500);
    migration(4, 1, START_NS + 73000, START_NS + 73100);
    overhead(START_NS + 80000, START_NS + 81000);
    kernel("_Z10unfinishedv", START_NS + 90000, 0);
}

static void pause_ms(long milliseconds)
{
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&pause, &pause) != 0) continue;
}

static void *launch_in_thread(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "launcher");
    launch(1000);
    return NULL;
}

static int wait_for(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void close_descriptors(void)
{
    for (int descriptor = 3; descriptor < 1024; descriptor++) close(descriptor);
}

static void limit_files(const char *bytes)
{
    struct rlimit limit = {strtoul(bytes, NULL, 10), RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void on_own_signal(int number)
{
    (void)number;
    exit(7);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "everything";
    const char *argument = count > 2 ? arguments[2] : "";
    puts("hello");
    fflush(stdout);
    if (strcmp(mode, "nothing") == 0) return atoi(argument);
    if (strcmp(mode, "fork_before") == 0) {
        pid_t child = fork();
        use_cuda();
        launch(child == 0 ? 2 : 5);
        return child == 0 ? 0 : wait_for(child);
    }
    if (strcmp(mode, "full") == 0) limit_files(argument);
    use_cuda();
    if (strcmp(mode, "everything") == 0) everything();
    if (strcmp(mode, "idle") == 0) return 0;
    if (strcmp(mode, "launch") == 0 || strcmp(mode, "full") == 0) launch(atoi(argument));
    if (strcmp(mode, "exit") == 0) {
        launch(4);
        return atoi(argument);
    }
    if (strcmp(mode, "raise") == 0) {
        launch(4);
        if (atoi(argument) == SIGSEGV) *(volatile int *)8 = 1;
        if (atoi(argument) == SIGABRT) abort();
        kill(getpid(), atoi(argument));
        pause_ms(20000);
    }
    if (strcmp(mode, "wait") == 0) {
        launch(4);
        fprintf(stderr, "%d\n", (int)getpid());
        pause_ms(20000);
    }
    if (strcmp(mode, "own_handler") == 0) {
        signal(SIGTERM, on_own_signal);
        launch(4);
        kill(getpid(), SIGTERM);
    }
    if (strcmp(mode, "leave") == 0) {
        launch(4);
        pause_ms(600);
        _exit(3);
    }
    if (strcmp(mode, "kill") == 0) {
        launch(4);
        pause_ms(600);
        kill(getpid(), SIGKILL);
    }
    if (strcmp(mode, "fork") == 0) {
        launch(4);
        pid_t child = fork();
        if (child == 0) exit(5);
        return wait_for(child);
    }
    if (strcmp(mode, "fork_signal") == 0) {
        launch(4);
        pid_t child = fork();
        if (child == 0) pause_ms(20000);
        kill(child, SIGTERM);
        return wait_for(child);
    }
    if (strcmp(mode, "close") == 0) {
        launch(2);
        pause_ms(500);
        close_descriptors();
        for (int i = 0; i < 600; i++) (void)!open(argument, O_WRONLY | O_CREAT, 0644);
        launch(3);
    }
    if (strcmp(mode, "reset") == 0) {
        launch(4);
        device_reset();
        kill(getpid(), SIGKILL);
    }
    if (strcmp(mode, "threads") == 0) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, launch_in_thread, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    if (strcmp(mode, "execute") == 0) {
        launch(2);
        pause_ms(500);
        char *next[] = {arguments[0], "launch", "3", NULL};
        execv("/proc/self/exe", next);
    }
    return 0;
}
