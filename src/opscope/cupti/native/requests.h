/* What the program's threads and the recorder's ask of each other. Kinds of work are bits. */
#ifndef OPSCOPE_REQUESTS_H
#define OPSCOPE_REQUESTS_H

/* To be called before all else. */
void requests_start(void);

/* Ask for work, and wait until it is done, but no longer than this: who does it may need what the caller holds. */
void request(int work, long wait_ms);

/* The requests among these kinds of work; 0 if there are none for this long. */
int next_request(int kinds, long wait_ms);

/* Say that work is done. */
void request_done(int work);

#endif
