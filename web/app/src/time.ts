// The time here and in other cities, by the time zones that the browser knows.

export type TimeResult = { city?: string; time: string; date: string; timezone: string } | { error: string };

/** The time in a city; without one, here. */
export function timeIn(city: string, now = new Date()): TimeResult {
    const wanted = city.trim();
    const here = new Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (wanted === '') return clock(now, here);
    const zone = zoneOf(wanted);
    if (zone === null) return { error: `No time zone is known for '${wanted.slice(0, 100)}'. The local time is ${clock(now, here).time}.` };
    return { city: wanted, ...clock(now, zone) };
}

function clock(now: Date, timezone: string): { time: string; date: string; timezone: string } {
    const format = new Intl.DateTimeFormat('en-GB', {
        timeZone: timezone, weekday: 'long', day: 'numeric', month: 'long', year: 'numeric', hour: '2-digit', minute: '2-digit', hourCycle: 'h23',
    });
    const part = Object.fromEntries(format.formatToParts(now).map(({ type, value }) => [type, value]));
    return { time: `${part['hour']}:${part['minute']}`, date: `${part['weekday']}, ${part['day']} ${part['month']} ${part['year']}`, timezone };
}

/** 'new york', 'Paris, France', 'Asia/Tokyo' and 'Japan' name a zone; 'Munich' does not: zones carry one city each. */
function zoneOf(city: string): string | null {
    const place = city.split(',')[0]!.normalize('NFD').replace(/\p{M}/gu, '').trim().replace(/\s+city$/i, '').replace(/\s+/g, '_');
    if (!/^[\w/'.-]+$/.test(place)) return null;
    const zones = Intl.supportedValuesOf('timeZone');
    const listed = zones.find((zone) => zone.toLowerCase() === place.toLowerCase() || zone.toLowerCase().endsWith(`/${place.toLowerCase()}`));
    if (listed) return listed;
    // Former and other names are not listed, but understood: Asia/Kolkata, Asia/Saigon, Japan.
    const regions = [...new Set(zones.map((zone) => zone.split('/')[0]!))].filter((region) => region !== 'Etc');
    return [place, ...regions.map((region) => `${region}/${place}`)].find(isZone) ?? null;
}

function isZone(name: string): boolean {
    try {
        return new Intl.DateTimeFormat('en', { timeZone: name }) !== null;
    } catch {
        return false;
    }
}
