"""The words that the generator knows. Order matters: it is part of what a seed means."""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
DIGITS = "zero one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()

OPPOSITES = [tuple(p.split("/")) for p in """
hot/cold big/small tall/short long/short fast/slow light/dark day/night up/down left/right in/out open/closed full/empty happy/sad old/young
new/old hard/soft wet/dry clean/dirty rich/poor strong/weak loud/quiet early/late first/last near/far high/low thick/thin wide/narrow
heavy/light good/bad right/wrong true/false yes/no begin/end start/stop push/pull buy/sell give/take win/lose come/go laugh/cry love/hate
remember/forget sweet/sour smooth/rough deep/shallow easy/difficult cheap/expensive friend/enemy summer/winter north/south east/west above/below
inside/outside before/after black/white awake/asleep alive/dead brave/afraid beautiful/ugly safe/dangerous sharp/blunt top/bottom front/back
""".split()]

# English: Spanish, French, German
TRANSLATIONS = {line.split()[0]: line.split()[1:] for line in """
house casa maison Haus
cat gato chat Katze
dog perro chien Hund
water agua eau Wasser
bread pan pain Brot
milk leche lait Milch
apple manzana pomme Apfel
tree árbol arbre Baum
sun sol soleil Sonne
moon luna lune Mond
star estrella étoile Stern
sea mar mer Meer
river río fleuve Fluss
mountain montaña montagne Berg
fire fuego feu Feuer
book libro livre Buch
table mesa table Tisch
door puerta porte Tür
window ventana fenêtre Fenster
street calle rue Straße
school escuela école Schule
friend amigo ami Freund
mother madre mère Mutter
father padre père Vater
brother hermano frère Bruder
sister hermana sœur Schwester
child niño enfant Kind
day día jour Tag
night noche nuit Nacht
red rojo rouge rot
blue azul bleu blau
green verde vert grün
yellow amarillo jaune gelb
white blanco blanc weiß
black negro noir schwarz
one uno un eins
two dos deux zwei
three tres trois drei
good bueno bon gut
big grande grand groß
small pequeño petit klein
horse caballo cheval Pferd
fish pez poisson Fisch
bird pájaro oiseau Vogel
flower flor fleur Blume
""".strip().splitlines()}
LANGUAGES = ["Spanish", "French", "German"]

# From small to large.
ANIMALS = "ant bee mouse frog squirrel rabbit cat fox dog sheep wolf pig lion bear horse cow giraffe elephant whale".split()

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karla Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Wendy Zoe Alice Bruno Carla Dora
Eric Fiona George Hanna Ivan Julia Kevin Laura Mark Nina Oscar Petra Robert Sarah Thomas Ursula Walter Yara""".split()
HELD_NAMES = "Marta Simon Lily Jonas Ruth Peter Elena Frank Sofia Tom".split()
CITIES = """Rome Paris Madrid Lisbon Vienna Prague Warsaw Athens Dublin Oslo Helsinki Stockholm Budapest Brussels Amsterdam Zurich Milan Venice Naples
Munich Hamburg Cologne Lyon Nice Porto Seville Geneva Boston Chicago Denver Dallas Miami Seattle Austin Toronto Montreal Lima Quito Cairo Tunis
Nairobi Mumbai Delhi Bangkok Hanoi Manila Seoul Osaka Kyoto Sydney""".split() + ["New York", "Los Angeles", "San Francisco", "Hong Kong", "Buenos Aires",
                                                                                  "Mexico City", "Cape Town", "Rio de Janeiro"]
HELD_CITIES = "London Berlin Tokyo Turin Malta Bern Graz Lagos Accra Perth Kiel Basel Ghent Leeds Bergen Salem".split()

HEROES = """fox rabbit bear mouse owl dragon robot girl boy king queen knight sailor baker cat dog hedgehog turtle wizard princess pirate farmer
squirrel giant witch duck frog penguin gardener painter""".split()
PLACES = """forest castle village garden mountain desert city cave lighthouse library kitchen harbour meadow swamp tower school market island
river bridge farm palace valley snowfield""".split()
OBJECTS = """lantern key map ring book bell boat kite apple hat mirror drum flute clock basket ladder rope crown candle umbrella stone feather
shovel bottle compass teapot coin blanket""".split()
FEELINGS = "curious brave lonely cheerful tired clever shy kind hungry patient".split()

SPELLED = """garden window yellow orange purple bridge castle dragon friend summer winter spring autumn school kitchen market planet rocket silver
golden button candle basket ladder mirror pencil paper letter number circle square triangle island river forest desert mountain valley
village city harbour ocean teacher doctor farmer baker painter sailor monkey tiger rabbit turtle penguin spider banana cherry lemon
potato tomato butter cheese coffee water bread music dance story magic happy clever quiet little strong gentle""".split()

FRUIT = "apple banana cherry lemon orange pear plum grape".split()
COLOURS = "red blue green yellow black white orange purple".split()
THINGS = "ball car hat cup lamp chair pen bag shirt box bike book".split()
JOBS = "baker doctor farmer teacher painter sailor cook nurse pilot gardener".split()

# What is spoken. Digits are DIGITS.
SPOKEN = """apple banana bread butter cat chair cheese clock coffee cow cup dog door duck egg fish flower forest fox garden girl glass gold grass green
hand hat horse house island jacket juice king kitchen knife lamp lemon letter lion milk mirror money monkey moon morning mountain mouse music
night number ocean orange paper parrot pencil piano pillow planet potato purple queen rabbit rain red river road robot rocket school ship
silver snake snow soup spider spoon star stone storm street sugar summer sun table teacher tiger tomato train tree turtle umbrella
village violin water whale wheel window winter wolf yellow zebra""".split()
