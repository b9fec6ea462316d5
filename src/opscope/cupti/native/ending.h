/* Signals that end the program: what was recorded reaches the file first.
 *
 * A handler is set only where the program left the default, and ends in the default: the process ends by the same
 * signal, with the same core dump. A handler that the program sets later replaces it. */
#ifndef OPSCOPE_ENDING_H
#define OPSCOPE_ENDING_H

/* Called, by a thread of its own, when a signal is about to end the program; returns when all is written, or after
 * some seconds. */
typedef void (*ending_callback)(int signal);

/* Watch for such signals in this process. Returns 1; 0 if no thread could be made. */
int ending_watch(ending_callback callback);

/* Set the defaults again, for a process forked off this one. */
void ending_forget(void);

#endif
