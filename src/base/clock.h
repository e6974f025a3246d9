#ifndef GM_CLOCK_H
#define GM_CLOCK_H

/* Seconds since some moment, never going back. */
double clock_seconds(void);

#endif
