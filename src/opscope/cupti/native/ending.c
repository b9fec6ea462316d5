#define _GNU_SOURCE
#include "ending.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* These end the program from outside; the thread they interrupt goes on until all is written. */
static const int REQUESTS[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXCPU};
/* The thread that caused these cannot go on; it waits. */
static const int CRASHES[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS};

enum { LENGTH_OF_REQUESTS = sizeof REQUESTS / sizeof *REQUESTS, LENGTH_OF_CRASHES = sizeof CRASHES / sizeof *CRASHES };
enum { CRASH_WAIT_MS = 3000 };

static ending_callback on_ending;
static pid_t owner;
static sem_t raised;
static atomic_int pending;
static atomic_int is_written;

static void set_default(int number)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

/* The signal ends the process as soon as the handler returns, in which it is blocked. */
static void end_by(int number)
{
    set_default(number);
    raise(number);
}

/* Returns 0 for all but the first signal, and in a process forked off: nothing waits for it there. */
static int announce(int number)
{
    int none = 0;
    if (getpid() != owner || !atomic_compare_exchange_strong(&pending, &none, number)) return 0;
    sem_post(&raised);
    return 1;
}

static void on_request(int number)
{
    int before = errno;
    if (!announce(number)) end_by(number);
    errno = before;
}

static void on_crash(int number, siginfo_t *information, void *context)
{
    (void)context;
    int before = errno;
    if (getpid() == owner) {
        announce(number);
        struct timespec pause = {0, 1000000};
        for (int waited = 0; waited < CRASH_WAIT_MS && !atomic_load(&is_written); waited++) nanosleep(&pause, NULL);
    }
    set_default(number);
    /* A fault happens again when the handler returns, where it happened; what was sent does not. */
    if (information->si_code <= 0) raise(number);
    errno = before;
}

static void block_all(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

static int is_request(int number)
{
    for (int i = 0; i < LENGTH_OF_REQUESTS; i++) {
        if (REQUESTS[i] == number) return 1;
    }
    return 0;
}

static void end_process(int number)
{
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    set_default(number);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    kill(getpid(), number);
}

static void *watch(void *unused)
{
    (void)unused;
    for (;;) {
        while (sem_wait(&raised) != 0 && errno == EINTR) continue;
        int number = atomic_load(&pending);
        on_ending(number);
        atomic_store(&is_written, 1);
        if (is_request(number)) end_process(number);
    }
    return NULL;
}

static void handle(int number, const struct sigaction *action)
{
    struct sigaction present;
    if (sigaction(number, NULL, &present) != 0) return;
    if ((present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == SIG_DFL) sigaction(number, action, NULL);
}

int ending_watch(ending_callback callback)
{
    on_ending = callback;
    owner = getpid();
    if (sem_init(&raised, 0, 0) != 0) return 0;
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    block_all(); /* the new thread has none unblocked from its first moment on */
    pthread_t thread;
    int failure = pthread_create(&thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0) return 0;
    pthread_detach(thread);

    struct sigaction request = {.sa_handler = on_request, .sa_flags = SA_RESTART};
    struct sigaction crash = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&request.sa_mask);
    sigemptyset(&crash.sa_mask);
    for (int i = 0; i < LENGTH_OF_REQUESTS; i++) handle(REQUESTS[i], &request);
    for (int i = 0; i < LENGTH_OF_CRASHES; i++) handle(CRASHES[i], &crash);
    return 1;
}

static void forget(int number)
{
    struct sigaction present;
    if (sigaction(number, NULL, &present) != 0) return;
    int is_ours = (present.sa_flags & SA_SIGINFO) != 0 ? present.sa_sigaction == on_crash
                                                        : present.sa_handler == on_request;
    if (is_ours) set_default(number);
}

void ending_forget(void)
{
    for (int i = 0; i < LENGTH_OF_REQUESTS; i++) forget(REQUESTS[i]);
    for (int i = 0; i < LENGTH_OF_CRASHES; i++) forget(CRASHES[i]);
}
