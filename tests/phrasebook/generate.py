"""A German-English phrasebook that writes itself, from a grammar and a list of phrases.

    python tests/phrasebook/generate.py                # prints twenty pairs: German, English
    python tests/phrasebook/generate.py 200 --seed 7   # two hundred others, for proof-reading
    python tests/phrasebook/generate.py --write        # rewrites the data file of the corpus

A sentence is built from a lexicon (nouns, adjectives, verbs, places, times) that knows what
goes with what: bread is eaten, letters are written, and only people wear hats. One clause is
rendered twice, by the rules of German word order and by those of English. The English follows
from the German alone:

    Präsens            of an activity      ->  is reading        (Er liest ein Buch.)
                       of a state          ->  knows             (Er kennt den Arzt.)
                       with a habit        ->  reads             (Er liest jeden Tag.)
                       with a future time  ->  will read         (Er liest morgen das Buch.)
    Perfekt, Präteritum                    ->  read, did not read
    Plusquamperfekt                        ->  had read
    werden + infinitive                    ->  will read

so a translator that has learned the rules can be right about sentences that it has never seen.

The grammar does not know what people say first: greetings, thanks, names, the time, prices.
These phrases are in phrases.txt, and come as people type them: many without capitals or marks.
"""

import argparse
import gzip
import random
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[2] / "support" / "corpora" / "phrasebook.tsv.gz"
PHRASES = Path(__file__).with_name("phrases.txt")
Pair = tuple[str, str]  # German, English

# --- lexicon ----------------------------------------------------------------------------------
#
# Nouns by what can be said of them, as a dictionary has them: article, word, plural (-er: add
# it; ¨: with an umlaut; none: a mass noun), English. In brackets, the articles that suit the
# kind, each as likely as its share: "own" is the subject's possessive, "die" the plural, "some"
# the bare plural or mass noun, "num" a number. "pl" is the article of a noun that has no
# singular.

NOUNS = """
adult (der der der ein dieser die): der Mann ¨er man, die Frau -en woman,
    der Student -en student,
    die Studentin -nen student, der Polizist -en policeman, die Verkäuferin -nen shop assistant,
    der Koch ¨e cook, der Künstler - artist, die Sängerin -nen singer, der Bauer -n farmer,
    der Bäcker - baker, der Kellner - waiter, der Tourist -en tourist, der Ingenieur -e engineer
contact (der mein unser dein dieser die): der Nachbar -n neighbour,
    die Nachbarin -nen neighbour,
    der Kollege -n colleague, die Kollegin -nen colleague, der Lehrer - teacher,
    die Lehrerin -nen teacher, der Arzt ¨e doctor, die Ärztin -nen doctor, der Chef -s boss,
    der Gast ¨e guest
child (der der die die dieser ein): der Junge -n boy, das Mädchen - girl, das Kind -er child,
    der Schüler - pupil, die Schülerin -nen pupil
kin (own own mein dein unser): der Vater ¨ father, die Mutter ¨ mother, der Bruder ¨ brother,
    die Schwester -n sister, der Onkel - uncle, die Tante -n aunt, der Sohn ¨e son,
    die Tochter ¨ daughter, der Großvater ¨ grandfather, die Großmutter ¨ grandmother,
    pl Eltern parents, pl Großeltern grandparents, pl Freunde friends
pet (der own mein die dieser): der Hund -e dog, die Katze -n cat
grazer (der die dieser): das Pferd -e horse, die Kuh ¨e cow, das Schaf -e sheep,
    das Kaninchen - rabbit
food (ein ein der some some num dieser): der Apfel ¨ apple, die Birne -n pear,
    die Banane -n banana,
    die Orange -n orange, die Tomate -n tomato, die Kartoffel -n potato, das Ei -er egg,
    der Kuchen - cake, das Brötchen - roll, der Keks -e biscuit
dish (some some der): das Brot bread, der Käse cheese, das Fleisch meat, der Fisch fish,
    die Suppe soup, der Reis rice, der Salat salad, die Schokolade chocolate, das Obst fruit
drink (some some der): das Wasser water, der Kaffee coffee, der Tee tea, die Milch milk,
    der Saft juice
alcohol (some some der): das Bier beer, der Wein wine
fodder (some der): das Gras grass, das Heu hay
cup (ein ein num): die Tasse Kaffee -n cup of coffee, die Tasse Tee -n cup of tea,
    das Glas Wasser ¨er glass of water, das Glas Milch ¨er glass of milk,
    die Flasche Saft -n bottle of juice
text (ein ein der der dieser num): das Buch ¨er book, die Zeitung -en newspaper,
    die Zeitschrift -en magazine, der Roman -e novel, das Gedicht -e poem,
    die Geschichte -n story,
    der Artikel - article
mail (ein der dieser num): der Brief -e letter, die Postkarte -n postcard, die E-Mail -s email
clothes (ein own own der dieser): das Hemd -en shirt, die Jacke -n jacket, der Mantel ¨ coat,
    der Hut ¨e hat, die Mütze -n cap, der Pullover - jumper, der Schal -s scarf
dress (ein own own der dieser): das Kleid -er dress, der Rock ¨e skirt, die Bluse -n blouse
thing (ein own own der mein dieser): die Tasche -n bag, der Stift -e pen, der Koffer - suitcase,
    der Rucksack ¨e backpack, der Regenschirm -e umbrella, der Ball ¨e ball,
    das Kissen - cushion,
    die Lampe -n lamp, die Kerze -n candle, die Vase -n vase
piece (ein own own der mein dieser): der Schlüssel - key, der Ring -e ring,
    das Bild -er picture,
    das Geschenk -e present, der Spiegel - mirror
dishes (der die ein num): das Messer - knife, die Gabel -n fork, der Löffel - spoon,
    der Teller - plate, das Glas ¨er glass, die Tasse -n cup, die Flasche -n bottle
device (ein own own der mein dieser): das Handy -s phone, die Kamera -s camera,
    der Computer - computer, der Fernseher - television, das Radio -s radio,
    der Wecker - alarm clock
furniture (der der ein dieser): der Tisch -e table, der Stuhl ¨e chair, das Bett -en bed,
    das Sofa -s sofa, der Schrank ¨e cupboard, das Regal -e shelf, der Sessel - armchair,
    der Teppich -e carpet
vehicle (ein own own der mein dieser): das Auto -s car, das Fahrrad ¨er bicycle,
    das Motorrad ¨er motorbike, das Boot -e boat
transport (der): der Bus -se bus, der Zug ¨e train, das Taxi -s taxi, die Straßenbahn -en tram
building (der der dieser ein): das Haus ¨er house, die Schule -n school, das Kino -s cinema,
    das Museum -en museum, das Hotel -s hotel, das Restaurant -s restaurant,
    die Kirche -n church,
    der Bahnhof ¨e station, das Krankenhaus ¨er hospital, das Theater - theatre,
    die Brücke -n bridge
home (own own der dieser): die Wohnung -en flat, das Zimmer - room
room (der der own): die Küche -n kitchen, das Wohnzimmer - living room,
    das Badezimmer - bathroom,
    der Keller - cellar
area (der der dieser): die Stadt ¨e city, das Dorf ¨er village, der Garten ¨ garden,
    der Park -s park
spot (der): die Tür -en door, das Fenster - window, der Baum ¨e tree, die Schublade -n drawer,
    die Kiste -n box, der Boden ¨ floor, die Blume -n flower, die Rechnung -en bill
topic (der der dieser ein): der Film -e film, das Lied -er song, der Witz -e joke,
    das Spiel -e game, die Reise -n journey, das Konzert -e concert
matter (der der dieser): das Problem -e problem, die Frage -n question, die Aufgabe -n task,
    die Prüfung -en exam
"""
PLURALS = {  # plurals that no rule gives
    "Museum": "Museen",
    "man": "men",
    "woman": "women",
    "child": "children",
    "policeman": "policemen",
    "sheep": "sheep",
    "knife": "knives",
    "shelf": "shelves",
    "scarf": "scarves",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "mouse": "mice",
    "fish": "fish",
    "person": "people",
}
PEOPLE = ("adult", "contact", "child", "kin")
# What is used up or done with in one go cannot be the same one every day.
USED_UP = set(["food", "dish", "drink", "alcohol", "fodder", "cup", "text", "mail"])
# Of these each has one's own: they wash their coats, not their coat.
PERSONAL = {"clothes", "dress", "thing", "piece", "device"}

# Objects without an article.
FIXED = {
    "sport": [
        ("Fußball", "football"),
        ("Tennis", "tennis"),
        ("Schach", "chess"),
        ("Karten", "cards"),
        ("Klavier", "the piano"),
        ("Gitarre", "the guitar"),
    ],
    "language": [
        ("Deutsch", "German"),
        ("Englisch", "English"),
        ("Französisch", "French"),
        ("Spanisch", "Spanish"),
        ("Italienisch", "Italian"),
    ],
    "sound": [("Musik", "music"), ("Radio", "the radio")],
    "travel": [
        ("dem Zug", "train"),
        ("dem Bus", "bus"),
        ("dem Auto", "car"),
        ("dem Fahrrad", "bicycle"),
        ("der Straßenbahn", "tram"),
        ("dem Taxi", "taxi"),
    ],
}
NAMES = {
    "er": ["Peter", "Thomas", "Paul", "Felix", "Lukas", "Max"],
    "sie": ["Anna", "Maria", "Julia", "Laura", "Lena", "Sophie"],
}

# Adjectives and the kinds of nouns, or the nouns, that they suit; "person" is every human
# being. A kind marked * is only said after "to be": one does not buy a broken radio.

ADJECTIVES = """
alt old: thing Ring Bild device clothes vehicle furniture building area home adult pet text
neu new: thing piece device clothes dress vehicle furniture dishes building home contact
jung young: adult contact* pet
rot red, blau blue, grün green: clothes dress thing vehicle
billig cheap: clothes dress thing device vehicle furniture
berühmt famous: adult Buch Roman Gedicht building
groß big: pet grazer thing furniture building home area vehicle food dishes room
klein small: pet grazer thing piece furniture building home area food dishes device room
schön beautiful: clothes dress thing piece building area home vehicle Film Lied Reise Konzert
teuer expensive: clothes dress thing device vehicle furniture Ring Bild Geschenk home*
modern modern: building furniture device home
weiß white: clothes dress thing pet grazer vehicle dishes
gelb yellow: clothes dress thing
sauber clean, schmutzig dirty: clothes* dress* dishes* vehicle* room* home*
schwarz black: clothes dress thing pet vehicle
bequem comfortable: Stuhl* Bett* Sofa* Sessel* clothes*
braun brown: clothes pet grazer furniture
lecker tasty: food* dish* Kuchen Suppe Salat Brot Käse Schokolade
grau grey: clothes dress pet
lang long, kurz short: Roman Gedicht Geschichte Artikel Brief E-Mail topic
schwer heavy: furniture thing*
süß sweet: Apfel Birne Orange Kuchen Keks Schokolade
leicht light: thing* clothes*
traurig sad: Buch Roman Gedicht Geschichte person*
heiß hot: Kaffee Tee Suppe
kaputt broken: device* furniture* vehicle*
interessant interesting: text topic mail* area*
warm warm: clothes dress room*
freundlich friendly: adult contact child pet person*
krank ill: person* pet*
nass wet: clothes* dress*
lustig funny: text topic* mail person*
nett nice: adult contact child person*
frisch fresh: Apfel Birne Orange Tomate Ei Brötchen Brot Fisch Fleisch Obst Salat Milch
einfach easy: matter
kalt cold: drink alcohol room*
fleißig hard-working: adult child contact person*
gemütlich cosy: home room*
langweilig boring: text topic area*
höflich polite: contact child person*
hungrig hungry: child person* pet
spannend exciting: text topic*
müde tired: adult child person* pet*
klug clever: adult child person* pet
schwierig difficult: matter
reich rich, arm poor: adult person*
stark strong: person* grazer adult
wichtig important: matter mail
ruhig quiet: area home building*
glücklich happy: child person*
durstig thirsty: person* pet*
faul lazy: child person* pet
gesund healthy: person* pet*
nervös nervous, wütend angry, zufrieden satisfied, pünktlich punctual, stolz proud: person*
"""
UMLAUTED = set(
    ["alt", "jung", "groß", "warm", "kalt", "lang", "kurz", "stark", "klug", "arm", "gesund"]
)  # älter, jünger
ABSOLUTE = set(
    [
        "rot",
        "blau",
        "grün",
        "gelb",
        "schwarz",
        "weiß",
        "braun",
        "grau",
        "kaputt",
        "nass",
        "frisch",
        "krank",
        "durstig",
    ]
)
MORE = {  # English comparatives that no rule gives
    "big": "bigger",
    "sad": "sadder",
    "hot": "hotter",
    "clever": "cleverer",
    "quiet": "quieter",
    "tired": "more tired",
    "polite": "more polite",
}

# Verbs: infinitive | English | kind | objects | places | subjects; auf-stehen is separable. The
# forms that no rule gives follow below.
#
# kind      a: an activity (is reading); e: an event (not said of the present moment: found);
#           s: a state (knows). Then h: may be a habit; d, l or m: done within a day, or over a
#           longer time, or in the morning; c: at an hour ("um acht Uhr"); u: not what one
#           wants.
#
# objects   "case kinds", or "case:German preposition:English preposition kinds"; "=" and
#           articles at the end override those of the kind. Several are separated by commas, in
#           German order.
#
# places    a tag of PLACES; "to" or "at" before it makes a place obligatory: where to, or
#           where.
#
# subjects  kinds of nouns, or nouns; "person" (if nothing is said) and "adult" include names
#           and pronouns.

VERBS = """
schlafen | sleep | ahd | - | sleep | person pet
spielen | play | ahd | dat:mit:with pet Ball | play | child
arbeiten | work | ehl | - | work | adult
backen | bake | ahd | acc Kuchen Brot Keks Brötchen | cook
weinen | cry | adu
lachen | laugh | ad | acc:über:about Witz Film Geschichte
tanzen | dance | ahd | - | dance
bestellen | order | ahd | acc cup alcohol dish Kuchen | dine
singen | sing | ad | acc Lied =ein der dieser | sing
trinken | drink | ahd | acc alcohol | dine | adult
schwimmen | swim | ahd | - | swim
schneiden | cut | ad | acc Brot Käse Fleisch Kuchen Tomate Apfel =der
wandern | hike | ahl | - | hike
verkaufen | sell | al | acc vehicle Haus Wohnung =own der | - | adult
spielen | play | ehl | acc sport
suchen | look | ad | acc::for thing piece device clothes kin pet
lernen | learn | ahl | acc language | learn
kochen | cook | ahd | acc Suppe Reis Fisch Fleisch | cook
hören | listen | ahd | acc::to sound | screen
sehen | see | ed | acc adult contact child kin pet grazer Film
essen | eat | ahd | acc food dish | eat
schreiben | write | ahd | acc mail Gedicht Geschichte | read
fressen | eat | ad | acc Fleisch Fisch | - | pet
malen | paint | ahd | acc Bild Haus Baum Blume =ein | read
fressen | eat | ad | acc fodder | - | grazer
waschen | wash | ahd | acc Auto clothes dress =own der
trinken | drink | ahd | acc drink cup | eat
schließen | close | ad | acc Tür Fenster Koffer Schublade =der
kaufen | buy | ahd | acc food dish drink | buy
ein-schalten | switch on | ad | acc device Lampe =der
kaufen | buy | ad | acc clothes dress thing device text =ein der dieser | shop
bezahlen | pay | ad | acc Rechnung | - | adult
aus-schalten | switch off | ad | acc device Lampe =der
finden | find | ed | acc thing piece pet =own der
bekommen | get | edu | acc mail Geschenk =ein num
lesen | read | ahd | acc text mail | read
auf-räumen | tidy | ahd | acc room home Schublade Schrank =der own
verlieren | lose | edu | acc Schlüssel Ring Tasche Handy Regenschirm clothes =own der
vergessen | forget | edu | acc thing Schlüssel Geschenk clothes =own der
putzen | clean | ahd | acc Fenster room home =der
tragen | wear | ad | acc clothes =ein own dieser
reparieren | repair | ad | acc device vehicle Stuhl Tisch | - | adult
auf-stehen | get up | ahmc
bauen | build | al | acc Haus Brücke Boot =ein der dieser | - | adult
auf-wachen | wake up | ehmcu
öffnen | open | ad | acc Tür Fenster Koffer Brief Flasche Geschenk =der
zurück-kommen | come back | edc
besuchen | visit | ahl | acc kin contact
mit-bringen | bring | ad | dat kin, acc Kuchen Geschenk Buch =ein
treffen | meet | ahdc | acc kin contact | meet
besuchen | visit | al | acc Museum Kirche Theater =der dieser
an-ziehen | put on | ad | acc Hemd Jacke Mantel Pullover =own own der
danken | thank | ad | dat kin contact
an-rufen | call | ahdc | acc kin contact
ab-holen | pick up | adc | acc kin Gast Kind =own der die | wait
ein-laden | invite | ad | acc kin contact
ein-schlafen | fall asleep | edu | - | sleep | person pet
fragen | ask | ad | acc kin contact Polizist
warten | wait | ad | acc:auf:for kin contact transport | wait
füttern | feed | ahd | acc pet grazer =der die
zu-hören | listen | ad | dat::to kin contact Sängerin
fotografieren | photograph | ad | acc building pet grazer Baum Blume =der dieser
sich beeilen | hurry | ad
nehmen | take | ahd | acc transport =der
träumen | dream | ahdu | dat:von:of Reise vehicle Haus pet =ein
frühstücken | have breakfast | ahmc | - | eat
sprechen | talk | ad | acc:über:about text Film matter Reise
ein-kaufen | shop | ahd | - | buy
sich kümmern | take care | ahd | acc:um:of pet kin Gast Garten =der own
fern-sehen | watch television | ahd | - | screen
denken | think | ahd | acc:an:about kin Prüfung Reise
an-kommen | arrive | edc | - | at arrive
sprechen | talk | ahd | dat:mit:to kin contact child
aus-gehen | go out | ahd
sich interessieren | be interested | sd | acc:für:in language Film text =der dieser
spazieren gehen | go for a walk | ahd | - | walk
fahren | go | ahd | dat:mit:by travel | to ride
helfen | help | ahd | dat kin contact adult
antworten | answer | ad | dat kin contact
sich aus-ruhen | rest | ahd | - | sleep
bringen | bring | ad | dat kin contact adult, acc cup Suppe Rechnung
gehen | go | ahd | - | to go
zeigen | show | ad | dat kin contact child, acc piece mail home Kamera =der own
fahren | go | al | - | to travel
sich freuen | look forward | adu | acc:auf:to Film Konzert Reise Spiel =der
laufen | run | ad | - | to ride
sich erinnern | remember | sd | acc:an: Film Reise Lied contact =der dieser
wohnen | live | sl | - | at live
leihen | lend | ad | dat kin contact, acc Buch vehicle Kamera Koffer =own
fliegen | fly | al | - | to travel
erklären | explain | ad | dat::to kin contact child, acc matter Spiel
reisen | travel | ahl | - | to travel
verstehen | understand | sd | acc matter text Witz Film =der dieser
bleiben | stay | ahd | - | at stay
schicken | send | ahd | dat kin contact, acc mail Geschenk =ein
geben | give | ad | dat kin contact child, acc piece text dishes food =ein der
schenken | give | ad | dat kin child, acc Buch Ring Bild Ball Fahrrad Kamera =ein
lieben | love | sd | acc kin pet =own
erzählen | tell | ahd | dat kin child, acc Geschichte Witz =ein
sprechen | speak | sl | acc language
haben | have | sd | acc pet vehicle device home matter =ein num
vor-lesen | read | ahd | dat kin child, acc Buch Brief Geschichte Gedicht =ein der
brauchen | need | sd | acc clothes thing device vehicle furniture dishes =ein ein own
mögen | like | sd | acc food dish drink pet text =some some some der dieser
kennen | know | sd | acc adult contact child building area text topic =der dieser
gehören | belong | sd | dat::to kin contact adult | - | thing device vehicle clothes
"""
IRREGULAR = """
backen backte gebacken, bekommen bekam bekommen, bleiben blieb geblieben,
    bringen brachte gebracht,
denken dachte gedacht, essen isst aß gegessen, fahren fährt fuhr gefahren, finden fand gefunden,
fliegen flog geflogen, fressen frisst fraß gefressen, geben gibt gab gegeben,
    gehen ging gegangen,
haben hat hatte gehabt, helfen hilft half geholfen, kennen kannte gekannt, kommen kam gekommen,
laden lädt lud geladen, laufen läuft lief gelaufen, leihen lieh geliehen,
    lesen liest las gelesen,
liegen lag gelegen, mögen mag mochte gemocht, nehmen nimmt nahm genommen, rufen rief gerufen,
schlafen schläft schlief geschlafen, schließen schloss geschlossen,
    schneiden schnitt geschnitten,
schreiben schrieb geschrieben, schwimmen schwamm geschwommen, sehen sieht sah gesehen,
sein ist war gewesen, singen sang gesungen, sitzen saß gesessen,
    sprechen spricht sprach gesprochen,
stehen stand gestanden, tragen trägt trug getragen, treffen trifft traf getroffen,
trinken trank getrunken, vergessen vergisst vergaß vergessen, verlieren verlor verloren,
verstehen verstand verstanden, waschen wäscht wusch gewaschen, wissen weiß wusste gewusst,
ziehen zog gezogen
"""  # infinitive, he/she/it form where it is irregular, Präteritum, participle
IRREGULAR_ENGLISH = """
be was been, bring brought brought, build built built, buy bought bought, come came come,
cut cut cut, drink drank drunk, eat ate eaten, fall fell fallen, feed fed fed, find found found,
fly flew flown, forget forgot forgotten, get got got, give gave given, go went gone,
    have had had,
know knew known, lend lent lent, lie lay lain, lose lost lost, meet met met, pay paid paid,
put put put, read read read, run ran run, say said said, see saw seen, sell sold sold,
send sent sent, shop shopped shopped, show showed shown, sing sang sung, sit sat sat,
sleep slept slept, speak spoke spoken, swim swam swum, take took taken, tell told told,
think thought thought, travel travelled travelled, understand understood understood,
wake woke woken, wear wore worn, write wrote written
"""
# These form the Perfekt with sein: ist gegangen.
MOVING = {
    "spazieren gehen",
    *[
        "gehen",
        "ausgehen",
        "fahren",
        "fliegen",
        "reisen",
        "laufen",
        "schwimmen",
        "wandern",
        "bleiben",
    ],
    *["ankommen", "zurückkommen", "aufstehen", "aufwachen", "einschlafen"],
}

# Where and where to (im Kino, ins Kino), the same in English, and what is done there (a tag in
# VERBS).
PLACES = """
zu/nach Hause, at/ home: eat read work sleep cook stay go ride dance learn screen
in der/in die Schule, at/to school: read learn go ride stay sing
im/ins Kino, at/to the cinema: go ride meet
im/ins Büro, at/to the office: work stay go ride meet
in der/in die Bäckerei, at/to the bakery: work go meet
auf dem/auf den Markt, at/to the market: buy go ride meet
im/ins Museum, at/to the museum: go ride meet work
im/in den Supermarkt, at/to the supermarket: buy work go ride meet
im See, in the lake: swim
in der/in die Stadt, in/into town: buy shop meet go ride live walk dine
im/ins Theater, at/to the theatre: go ride meet sing work
im/ins Krankenhaus, at/to the hospital: work ride
im/ins Restaurant, at/to the restaurant: dine work go ride meet
im Meer, in the sea: swim
im/ins Café, at/to the café: dine read work go ride meet wait
im/ins Bett, in/to bed: read sleep stay enter
im/ins Hotel, at/to the hotel: sleep work stay go ride meet wait screen
im/in den Park, in/to the park: read play go ride meet walk dance eat
im/in den Garten, in/into the garden: eat read play enter dance sing work
in der/in die Küche, in/into the kitchen: eat cook enter
in der/in die Kirche, at/to church: go ride sing
im/ins Wohnzimmer, in/into the living room: read play sleep dance enter screen
in der/in die Bibliothek, at/to the library: read work learn go ride
an der/zur Universität, at/to the university: work learn ride meet
an der/zur Haltestelle, at/to the bus stop: wait meet go
in/nach Wien, in/to Vienna: live work travel arrive
am/zum Bahnhof, at/to the station: wait meet go ride arrive
auf dem/aufs Land, in/to the country: live ride
am/zum Flughafen, at/to the airport: wait meet ride arrive work
am/an den Strand, on/to the beach: read play sleep walk go ride dance
am/an den See, by/to the lake: read play walk go ride hike
in/nach Italien, in/to Italy: live travel hike
im/ins Schwimmbad, at/to the swimming pool: swim go ride meet
in/nach Spanien, in/to Spain: live travel hike
im/in den Wald, in/into the forest: hike play walk go ride
in/nach Berlin, in/to Berlin: live work travel arrive learn
in/nach Hamburg, in/to Hamburg: live work travel arrive learn
in/nach München, in/to Munich: live work travel arrive learn
in/nach Köln, in/to Cologne: live work travel arrive
in/nach London, in/to London: live work travel arrive
in/nach Frankreich, in/to France: live travel hike
in der/in die Schweiz, in/to Switzerland: live work travel hike
"""

NUMBERS = dict(
    zip(
        [
            "zwei",
            "drei",
            "vier",
            "fünf",
            "sechs",
            "sieben",
            "acht",
            "neun",
            "zehn",
            "elf",
            "zwölf",
        ],
        [
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        ],
    )
)
COUNTS = list(NUMBERS)[:6]  # so many apples or books at one time
HOURS = [("eins", "one"), *NUMBERS.items()]
DAYS = dict(
    zip(
        ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"],
        ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    )
)

# (German, English, how long an event may be: d, l, m as in VERBS, and c if an hour may be
# added)
ON_DAYS = [(f"am {de}", f"on {en}", "dlmc") for de, en in DAYS.items()]
TIMES = {
    "past": [
        ("gestern", "yesterday", "dlmc"),
        ("gestern Abend", "yesterday evening", "d"),
        ("letzte Woche", "last week", "dl"),
        ("vorgestern", "the day before yesterday", "dl"),
        ("heute Morgen", "this morning", "dmc"),
        ("letzten Monat", "last month", "l"),
        ("letztes Jahr", "last year", "l"),
        ("letzten Sommer", "last summer", "l"),
        ("am Wochenende", "at the weekend", "dl"),
        *ON_DAYS,
        *((f"vor {de} Tagen", f"{NUMBERS[de]} days ago", "dl") for de in COUNTS[:3]),
        *((f"vor {de} Jahren", f"{NUMBERS[de]} years ago", "l") for de in COUNTS),
    ],
    "future": [
        ("morgen", "tomorrow", "dlmc"),
        ("morgen früh", "tomorrow morning", "dmc"),
        ("morgen Abend", "tomorrow evening", "d"),
        ("übermorgen", "the day after tomorrow", "dl"),
        ("heute Abend", "this evening", "d"),
        ("bald", "soon", "dl"),
        ("nächste Woche", "next week", "dl"),
        ("nächsten Monat", "next month", "l"),
        ("nächstes Jahr", "next year", "l"),
        ("nächsten Sommer", "next summer", "l"),
        ("am Wochenende", "at the weekend", "dl"),
        *ON_DAYS,
        *((f"in {de} Stunden", f"in {NUMBERS[de]} hours", "d") for de in COUNTS[:3]),
        *((f"in {de} Tagen", f"in {NUMBERS[de]} days", "l") for de in COUNTS),
    ],
    "now": [
        ("gerade", "at the moment", "dlm"),
        ("jetzt", "now", "dlm"),
        ("heute", "today", "dl"),
    ],
    "habit": [
        ("jeden Tag", "every day", "dlmc"),
        ("jeden Morgen", "every morning", "dmc"),
        ("jeden Abend", "every evening", "d"),
        ("jede Woche", "every week", "dl"),
        ("jedes Wochenende", "every weekend", "dl"),
        ("im Sommer", "in summer", "dl"),
        *((f"jeden {de}", f"every {en}", "dlmc") for de, en in DAYS.items()),
    ],
}
# Adverbs that stand before the English verb, and make a habit of what it says.
FREQUENCIES = [
    ("oft", "often"),
    ("immer", "always"),
    ("manchmal", "sometimes"),
    ("nie", "never"),
    ("selten", "rarely"),
    ("meistens", "usually"),
]

# --- morphology: nouns ------------------------------------------------------------------------

CASES = {"nom": 0, "acc": 1, "dat": 2}
# of articles and adjectives, in the three cases: masculine, feminine, neuter, plural
ENDINGS = {
    "der": ("er en em", "ie ie er", "as as em", "ie ie en"),  # d-er
    "dieser": ("er en em", "e e er", "es es em", "e e en"),  # dies-er; without article: rot-er
    "ein": ("- en em", "e e er", "- - em", "e e en"),  # ein, ein-en
    "none": ("- - -", "- - -", "- - -", "- - -"),
    "weak": ("e en en", "e e en", "e e en", "en en en"),  # der rot-e
    "mixed": ("er en en", "e e en", "es es en", "en en en"),  # ein rot-er
}
# "ihr" is her or their: the key says which, the German does not.
DETERMINERS = {
    "": "",
    "der": "the",
    "ein": "a",
    "dieser": "this",
    "mein": "my",
    "dein": "your",
    "sein": "his",
    "ihr:her": "her",
    "unser": "our",
    "euer": "your",
    "ihr:their": "their",
    **NUMBERS,
}


class Noun(NamedTuple):
    word: str
    gender: str  # m, f, n, or p for a plural
    plural: str  # "" for a mass noun
    english: str
    group: str


class Phrase(NamedTuple):
    """A noun phrase, or another word in its place: German cases, English, and what refers
    to it."""

    cases: tuple[str, ...]
    english: str
    english_object: str
    person: int = 2  # 0 ich, 1 du, 2 er/sie/es, 3 wir, 4 ihr, 5 sie
    pronoun: str = ""  # the key in PRONOUNS of the word that can stand for it, if clear
    noun: Noun | None = None
    determiner: str = ""
    plural: bool = False
    adjective: Pair = ("", "")
    light: bool = False  # a pronoun: it comes first after the verb


# nominative, accusative, dative, English subject and object, possessive; "sie" is no object:
# her or them?
PRONOUNS = {
    "ich": ("ich", "mich", "mir", "I", "me", "mein"),
    "du": ("du", "dich", "dir", "you", "you", "dein"),
    "er": ("er", "ihn", "ihm", "he", "him", "sein"),
    "sie": ("sie", "", "ihr", "she", "her", "ihr:her"),
    "wir": ("wir", "uns", "uns", "we", "us", "unser"),
    "ihr": ("ihr", "euch", "euch", "you", "you", "euer"),
    "sie (pl)": ("sie", "", "ihnen", "they", "them", "ihr:their"),
}
PERSONS = dict(zip(PRONOUNS, (0, 1, 2, 2, 3, 4, 5)))
REFLEXIVE = ["mich", "dich", "sich", "uns", "euch", "sich"]


def pronoun(key: str) -> Phrase:
    """The personal pronoun `key` of PRONOUNS."""
    nominative, accusative, dative, subject, object_, _ = PRONOUNS[key]
    return Phrase(
        (nominative, accusative, dative), subject, object_, PERSONS[key], key, light=True
    )


def fixed(german: str, english: str, determiner: str = "", **more) -> Phrase:
    """Words that are the same in every case."""
    return Phrase((german,) * 3, english, english, determiner=determiner, **more)


def umlaut(word: str) -> str:
    """Baum -> Bäum, alt -> ält."""
    return re.sub("(a|o|u)(?=u?[^aou]*$)", lambda m: "äöü"["aou".index(m[0])], word, count=1)


def plural_de(word: str, ending: str) -> str:
    """(Mann, ¨er) -> Männer; of the first of several words: Gläser Wasser."""
    head, space, rest = word.partition(" ")
    head = umlaut(head[0].lower() + head[1:]).capitalize() if ending[0] == "¨" else head
    return PLURALS.get(head, head + ending[1:]) + space + rest


def plural_en(word: str) -> str:
    """The plural of an English noun: cities, boxes, cups of tea."""
    head, of, rest = word.partition(" of ")
    return PLURALS.get(head, with_s(head)) + of + rest


def with_s(word: str) -> str:
    """cities, boxes, keys; goes, watches, cries, plays."""
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "go")) else "s")


def decline_noun(noun: Noun, case: int, plural: bool) -> str:
    """One form of a noun: den Hund, den Hunden, den Jungen."""
    if plural:
        same = case != CASES["dat"] or noun.plural[-1] in "ns" or " " in noun.plural
        return noun.plural + ("" if same else "n")
    n_declension = noun.gender == "m" and noun.plural in (noun.word + "n", noun.word + "en")
    return noun.plural if case and n_declension else noun.word


@lru_cache(None)
def phrase(
    noun: Noun, determiner: str = "der", plural: bool = False, adjective: Pair = ("", "")
) -> Phrase:
    """Article, adjective, noun: Hund, "ein", False, ("alt", "old"): ein alter Hund, an old
    dog."""
    plural = plural or noun.gender == "p"
    gender = "mfnp".index("p" if plural else noun.gender)
    stem = determiner.partition(":")[0]
    if stem == "der":
        stem, article, kind = "d", "der", "weak"
    elif stem == "dieser":
        stem, article, kind = "dies", "dieser", "weak"
    else:
        article, kind = (
            ("none", "dieser") if stem == "" or stem in NUMBERS else ("ein", "mixed")
        )
    german = "teur" if adjective[0] == "teuer" else adjective[0].removesuffix("e")
    cases = []
    for case in range(3):
        ending, other = (
            ENDINGS[name][gender].split()[case].strip("-") for name in (article, kind)
        )
        cases.append(
            join(
                ("eur" if stem == "euer" and ending else stem) + ending,
                german and german + other,
                decline_noun(noun, case, plural),
            )
        )

    word = noun.english if not plural or noun.gender == "p" else plural_en(noun.english)
    words = join(adjective[1], word)
    if determiner in ("ein", "kein") and not plural and noun.plural:
        words = ("an " if words[0] in "aeiou" else "a ") + words
    elif determiner == "kein":
        words = "any " + words
    else:
        these = plural and determiner == "dieser"
        words = join("these" if these else DETERMINERS[determiner], words)
    refers = "sie (pl)" if plural else {"m": "er", "f": "sie", "n": ""}[noun.gender]
    return Phrase(
        tuple(cases),
        words,
        words,
        5 if plural else 2,
        refers if noun.group in PEOPLE else "",
        noun,
        determiner,
        plural,
        adjective,
    )


def join(*words: str) -> str:
    """The words that are not empty, with spaces between them."""
    return " ".join(filter(None, words))


# --- morphology: verbs ------------------------------------------------------------------------

PRESENT = {
    forms.split()[3]: forms.split()
    for forms in (  # verbs whose present follows no rule
        "bin bist ist sein seid sind",
        "habe hast hat haben habt haben",
        "werde wirst wird werden werdet werden",
        "kann kannst kann können könnt können",
        "muss musst muss müssen müsst müssen",
        "will willst will wollen wollt wollen",
        "darf darfst darf dürfen dürft dürfen",
        "soll sollst soll sollen sollt sollen",
        "möchte möchtest möchte möchten möchtet möchten",
        "mag magst mag mögen mögt mögen",
        "weiß weißt weiß wissen wisst wissen",
    )
}
PRESENT["sein"][3] = "sind"
MODAL_PAST = {"können": "konnte", "müssen": "musste", "wollen": "wollte", "dürfen": "durfte"}
MODAL_ENGLISH = {
    "können": "be able to",
    "müssen": "have to",
    "wollen": "want to",
    "dürfen": "be allowed to",
    "sollen": "be supposed to",
}
ING = {"lie": "lying", "see": "seeing", "be": "being"} | {
    word: word + word[-1] + "ing"
    for word in ["run", "swim", "get", "put", "sit", "cut", "shop", "forget", "travel"]
}
AM, WAS = (
    ["am", "are", "is", "are", "are", "are"],
    ["was", "were", "was", "were", "were", "were"],
)


def read_forms(rows: str) -> dict[str, list[str]]:
    """IRREGULAR or IRREGULAR_ENGLISH -> {infinitive: the other forms}."""
    return {row.split()[0]: row.split()[1:] for row in re.split(r",\s+", rows.strip())}


GERMAN_FORMS, ENGLISH_FORMS = read_forms(IRREGULAR), read_forms(IRREGULAR_ENGLISH)


class English(NamedTuple):
    """An English verb: look, looked, looked, and what follows it (up, for, breakfast)."""

    base: str
    past: str
    participle: str
    tail: str = ""

    @property
    def infinitive(self) -> str:
        return join(self.base, self.tail)


class Verb(NamedTuple):
    infinitive: str
    prefix: str  # auf- of aufstehen
    base: str  # stehen
    third: str
    past: str
    participle: str
    reflexive: bool
    english: English
    kind: str
    objects: tuple = ()  # of (case, German preposition, English preposition, nouns, articles)
    need: str = ""  # "to" or "at" where a place is obligatory
    places: tuple = ()
    subjects: tuple = ()


def read_english(text: str) -> English:
    """`get up` -> get, got, got, up."""
    base, _, tail = text.partition(" ")
    regular = re.sub("(?<![aeo])y$", "i", base).removesuffix("e") + "ed"
    return English(base, *ENGLISH_FORMS.get(base, (regular, regular)), tail)


def read_verb(
    infinitive: str,
    english: str,
    kind: str = "s",
    objects: str = "",
    places: str = "",
    subjects: str = "person",
) -> Verb:
    """A row of VERBS -> Verb."""
    reflexive, infinitive = infinitive.startswith("sich "), infinitive.removeprefix("sich ")
    parts = re.fullmatch(r"(?:(.+)-|(.+ ))?(\w+)", infinitive)
    prefix, base = parts.expand(r"\1\2 \3").rsplit(" ", 1)
    third = stem_of(base) + ("et" if is_hard(stem_of(base)) else "t")
    inseparable = base.startswith(("be", "er", "ge", "ver")) or base.endswith("ieren")
    forms = GERMAN_FORMS.get(base) or [third + "e", third if inseparable else "ge" + third]
    third, past, participle = forms if len(forms) == 3 else (third, *forms)
    need, _, tag = places.strip("-").rpartition(" ")
    where = tuple(place for place in PLACES if tag in place[4])
    return Verb(
        prefix + base,
        prefix,
        base,
        third,
        past,
        prefix + participle,
        reflexive,
        read_english(english),
        kind,
        read_objects(objects.strip("-")),
        need,
        where,
        tuple(subjects.split()),
    )


def stem_of(base: str) -> str:
    """lesen -> les, wandern -> wander."""
    return base.removesuffix("n").removesuffix("e")


def is_hard(stem: str) -> bool:
    """Whether an e is wanted before t: er arbeitet, er öffnet."""
    return stem[-1] in "td" or stem[-1] in "mn" and stem[-2] not in "aeiouäöürlhmn"


@lru_cache(None)
def present(verb: Verb) -> list[str]:
    """The six forms of the Präsens."""
    base, third, stem = verb.base, verb.third, stem_of(verb.base)
    if base in PRESENT:
        return PRESENT[base]
    first = base.removesuffix("eln") + "le" if base.endswith("eln") else stem + "e"
    second = third if third[-2] in "sßzx" else third[:-1] + "st"
    return [first, second, third, base, stem + ("et" if is_hard(stem) else "t"), base]


def preterite(past: str) -> list[str]:
    """The six forms of the Präteritum, from the first."""
    many = past + ("n" if past.endswith("e") else "en")
    return [past, past + "st", past, many, past + "t", many]


def german_verb(verb: Verb, person: int, tense: str, modal: str = "") -> tuple[str, str, str]:
    """(finite verb, end of a main clause, the two as they stand at a subordinate clause's
    end)."""
    if not modal and tense in ("present", "past"):
        finite = (present(verb) if tense == "present" else preterite(verb.past))[person]
        return finite, verb.prefix.strip(), verb.prefix + finite
    moving, last = verb.infinitive in MOVING, verb.infinitive
    if modal:
        forms = preterite(MODAL_PAST[modal]) if tense == "past" else PRESENT[modal]
    elif tense == "future":
        forms = PRESENT["werden"]
    elif tense == "perfect":
        forms, last = PRESENT["sein" if moving else "haben"], verb.participle
    else:
        forms, last = preterite("war" if moving else "hatte"), verb.participle
    return forms[person], last, f"{last} {forms[person]}"


def english_verb(
    verb: English, person: int, form: str, modal: str = "", bare: bool = False
) -> Pair:
    """(auxiliary or "", the rest): ("", "reads"), ("is", "reading"), ("will", "read").

    `bare`, as a question or a negation wants it, always has an auxiliary: ("does", "read").
    `form` is one of simple, progressive, past, past progressive, past perfect, will.
    """
    if modal == "möchten":
        return "would", "like to " + verb.infinitive
    if modal == "können" and form == "simple":
        return "can", verb.infinitive
    if modal:
        verb = read_english(f"{MODAL_ENGLISH[modal]} {verb.infinitive}")
    base, past, participle, tail = verb
    be = (WAS if form.startswith("past") else AM)[person]
    if form == "will":
        words = "will", base
    elif form == "past perfect":
        words = "had", participle
    elif form.endswith("progressive"):
        words = be, ING.get(base) or base.removesuffix("e") + "ing"
    elif base in ("be", "can", "would"):  # they ask and deny without "do"
        words = be if base == "be" else base, ""
    elif bare:
        words = "did" if form == "past" else "does" if person == 2 else "do", base
    elif form == "past" or person != 2:
        words = "", past if form == "past" else base
    else:
        words = "", "has" if base == "have" else with_s(base)
    return words[0], join(words[1], tail)


CONTRACTED = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "an das": "ans",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}


def contract(text: str) -> str:
    """in dem -> im, von dem -> vom: a preposition with its article, at the start of `text`."""
    start = " ".join(text.split()[:2])
    return CONTRACTED.get(start, start) + text.removeprefix(start)


# --- the lexicon, read in ---------------------------------------------------------------------


def read_nouns() -> dict[str, Noun]:
    """NOUNS -> {German: Noun}; fills ARTICLES, too."""
    words = {}
    for kind, articles, entries in re.findall(r"^(\w+) \((.*?)\): ([^(]*)$", NOUNS, re.M):
        ARTICLES[kind] = tuple(articles.split())
        for entry in re.split(r",\s+", entries.strip()):
            noun = read_noun(entry, kind)
            words[noun.word] = noun
    return words


def read_noun(entry: str, kind: str) -> Noun:
    """An entry of NOUNS, `der Apfel ¨ apple`, as a noun of that kind."""
    article, word, plural, english = re.fullmatch(
        r"(\w+) ([A-ZÄÖÜ]\S*(?: [A-Z]\w*)?) (?:([-¨]\w*) )?(.+)", entry
    ).groups()
    if article == "pl":
        plural = word
    elif plural:
        plural = plural_de(word, plural)
    else:
        plural = ""
    gender = {"der": "m", "die": "f", "das": "n", "pl": "p"}[article]
    return Noun(word, gender, plural, english, kind)


ARTICLES: dict[str, tuple[str, ...]] = {}
WORDS = read_nouns()
GROUPS = {group: [noun for noun in WORDS.values() if noun.group == group] for group in ARTICLES}


def nouns(kinds: str) -> tuple:
    """The nouns of a list of kinds and single words, or ready phrases for the kinds of
    FIXED."""
    found = []
    for kind in kinds.split():
        if kind in FIXED:
            found += [fixed(de, en, "fixed") for de, en in FIXED[kind]]
        else:
            found += GROUPS.get(kind) or [WORDS[kind]]
    return tuple(found)


def read_objects(text: str) -> tuple:
    """`acc:auf:for kin =der own` -> (case, German and English preposition, nouns, articles)."""
    objects = []
    for part in filter(None, text.split(", ")):
        part, _, articles = part.partition(" =")
        head, _, kinds = part.partition(" ")
        case, german, english = (head.split(":") + ["", ""])[:3]
        objects.append((CASES[case], german, english, nouns(kinds), tuple(articles.split())))
    return tuple(objects)


def read_place(
    german: str, english: str, tags: str
) -> tuple[str, str, str, str, frozenset[str]]:
    """im/ins Kino, at/to the cinema -> im Kino, ins Kino, at the cinema, to the cinema,
    tags."""
    places = []
    for text in (german, english):
        at, _, to = text.partition("/")
        rest = to.rsplit(" ", 1)[-1:] if text == german else to.split(" ")[1:]
        places += [join(at, *rest), to.strip()] if to else [at, ""]
    return *places, frozenset(tags.split())


PLACES = [read_place(*re.split(", |: ", row)) for row in PLACES.strip().splitlines()]
FRAMES = [read_verb(*row.split(" | ")) for row in VERBS.strip().splitlines()]
BY_NAME: dict[str, list[Verb]] = {}
for frame in FRAMES:
    BY_NAME.setdefault(frame.infinitive, []).append(frame)
SEIN = read_verb("sein", "be")

# Which adjectives go before a noun, and which can be said of it after "to be".
ATTRIBUTES: dict[str, list[Pair]] = {word: [] for word in WORDS}
PREDICATES: dict[str, list[Pair]] = {word: [] for word in (*WORDS, "person", "adult")}
for words, kinds in (row.split(": ") for row in ADJECTIVES.strip().splitlines()):
    for pair in (tuple(word.split()) for word in words.split(", ")):
        for kind in kinds.split():
            group = kind.rstrip("*")
            if group in ("person", "adult"):
                PREDICATES[group].append(pair)
            for noun in nouns(" ".join(PEOPLE) if group == "person" else group):
                PREDICATES[noun.word] += [pair] if pair not in PREDICATES[noun.word] else []
                if kind == group:
                    ATTRIBUTES[noun.word].append(pair)

# --- clauses ----------------------------------------------------------------------------------

GAP = fixed("", "")  # what a question word or a relative pronoun has taken away
INDEFINITES = {"ein", "kein", "", "fixed", *NUMBERS}


class Object(NamedTuple):
    case: int
    german: str  # prepositions
    english: str
    phrase: Phrase


class Clause(NamedTuple):
    """What is said, without an order of words: german() and english() give it one."""

    subject: Phrase
    verb: Verb
    tense: str = "present"  # present, past, perfect, pluperfect, future
    form: str = "simple"  # the form of the English verb, see english_verb
    modal: str = ""
    objects: tuple[Object, ...] = ()
    place: Pair = ("", "")
    directed: bool = False  # the place says where to, or belongs to the verb as closely
    time: Pair = ("", "")
    frequency: Pair = ("", "")
    predicate: Pair = ("", "")
    negated: bool = False

    def middle(self) -> list[str]:
        """The German words between the finite verb (or the conjunction) and the clause's
        end."""
        light, datives, definite, indefinite, prepositional = [], [], [], [], []
        for o in self.objects:
            if o.german:
                kind = prepositional
            elif o.phrase.light:
                kind = light
            elif o.case == CASES["dat"]:
                kind = datives
            else:
                kind = indefinite if o.phrase.determiner in INDEFINITES else definite
            if o.phrase is not GAP:
                kind.append(contract(join(o.german, o.phrase.cases[o.case])))
        no = self.negated and not any(o.phrase.determiner == "kein" for o in self.objects)
        soon = (
            indefinite or prepositional
        ) and not self.directed  # the place goes before these
        return [
            *light,
            self.time[0],
            self.frequency[0],
            *datives,
            *definite,
            "nicht" if no else "",
            self.place[0] if soon else "",
            *indefinite,
            *prepositional,
            "" if soon else self.place[0],
            self.predicate[0],
        ]

    def german(self, order: str = "second", front: str = "") -> str:
        """The clause in German; `front`, if any, takes the first place, before the finite verb.

        `order` says where that verb stands: second (Er liest.), first (Liest er?) or last (weil
        er liest).
        """
        finite, end, cluster = german_verb(
            self.verb, self.subject.person, self.tense, self.modal
        )
        subject = self.subject.cases[0]
        reflexive = REFLEXIVE[self.subject.person] if self.verb.reflexive else ""
        # "sich" follows a pronoun, but comes before a noun: wäscht er sich, wäscht sich der
        # Mann
        both = join(subject, reflexive) if self.subject.light else join(reflexive, subject)
        if order == "last":
            return join(both, *self.middle(), cluster)
        if order == "first" or front:
            return join(front, finite, both, *self.middle(), end)
        return join(subject, finite, reflexive, *self.middle(), end)

    def english(self, order: str = "statement") -> str:
        """The clause in English. `order`: statement, question (does he read), infinitive
        (read)."""
        plain = [o.phrase.english_object for o in self.objects if not o.english]
        others = [join(o.english, o.phrase.english_object) for o in self.objects if o.english]
        first, last = (self.place[1], "") if self.directed else ("", self.place[1])
        rest = join(self.predicate[1], *plain, first, *others, last, self.time[1])
        if order == "infinitive":
            return join(self.verb.english.infinitive, rest)
        bare = self.negated or order == "question"
        auxiliary, words = english_verb(
            self.verb.english, self.subject.person, self.form, self.modal, bare
        )
        never = "not" if self.negated else ""
        if order == "question":
            return join(auxiliary, self.subject.english, never, self.frequency[1], words, rest)
        start = "cannot" if (auxiliary, never) == ("can", "not") else join(auxiliary, never)
        return join(self.subject.english, start, self.frequency[1], words, rest)


def finish(german: str, english: str, mark: str = ".") -> Pair:
    """Two sentences, with a capital and an end mark each."""
    return german[0].upper() + german[1:] + mark, english[0].upper() + english[1:] + mark


def tell(clause: Clause, mark: str = ".") -> Pair:
    return finish(clause.german(), clause.english(), mark)


def ask(clause: Clause, german: str = "", english: str = "") -> Pair:
    """A question, perhaps with question words in front."""
    return finish(
        clause.german("first", german), join(english, clause.english("question")), "?"
    )


def both(
    first: Clause, german: str, english: str, second: Clause, order: str = "second"
) -> Pair:
    """Two clauses with a conjunction between them."""
    return finish(
        f"{first.german()}{german} {second.german(order)}",
        f"{first.english()}{english} {second.english()}",
    )


def pick(rng: random.Random, choices):
    """One of the choices (as rng.choice, in half the time)."""
    return choices[int(rng.random() * len(choices))]


def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def name(rng: random.Random) -> Phrase:
    """A first name."""
    key = pick(rng, ("er", "sie"))
    word = pick(rng, NAMES[key])
    return fixed(word, word, "name", pronoun=key)


def noun_phrase(
    rng: random.Random,
    noun: Noun,
    articles="",
    owner: Phrase | None = None,
    adjective: float = 0.3,
    habit: bool = False,
) -> Phrase:
    """The noun with an article that suits it, perhaps an adjective; `owner` is who its
    "own" is."""
    tokens = articles or ARTICLES[noun.group]
    if habit and noun.group in USED_UP:
        tokens = [t for t in tokens if t in ("ein", "some")] or [
            "ein" if noun.plural else "some"
        ]
    token = pick(rng, tokens)
    if noun.group == "kin" and token in ("der", "die", "dieser", "ein"):
        token = "own"  # one has a father; "the father" needs a story
    if noun.group == "dress" and token == "own" and not (owner and owner.pronoun == "sie"):
        token = "der"  # not his skirt
    determiner, many = (
        {
            "own": "mein" if noun.group == "kin" else "der",
            "die": "der",
            "some": "",
            "num": pick(rng, COUNTS),
        }.get(token, token),
        token in ("die", "num"),
    )
    if token == "own" and owner and owner.pronoun:
        determiner = PRONOUNS[owner.pronoun][5]
        many = owner.person > 2 and noun.group in PERSONAL
    if token == "some":
        many = bool(noun.plural)
    if token == "ein" and not noun.plural:
        determiner = ""
    attributes = ATTRIBUTES[noun.word]
    described = attributes and chance(rng, adjective)
    return phrase(noun, determiner, many, pick(rng, attributes) if described else ("", ""))


FOLK = {"adult": nouns("adult contact"), "person": nouns("adult contact child")}


def someone(rng: random.Random, who: str = "person", pronouns: float = 0.3) -> Phrase:
    """A person as a subject: I, Anna, Anna and Paul, my brother, the old man.

    `who` is person or adult.
    """
    chosen = rng.random() - pronouns
    if chosen < 0:
        return pronoun(pick(rng, list(PRONOUNS)))
    if chosen < 0.12:
        return name(rng)
    if chosen < 0.16:
        first, second = rng.sample(NAMES["er"] + NAMES["sie"], 2)
        return fixed(
            f"{first} und {second}",
            f"{first} and {second}",
            "name",
            person=5,
            pronoun="sie (pl)",
        )
    noun = pick(rng, GROUPS["kin"] if chosen < 0.36 else FOLK[who])
    return noun_phrase(rng, noun, adjective=0.25)


# Whom a pronoun may stand for, by the person of the subject: "I help us" is not said.
APART = 2 * [
    ("du", "er", "sie", "ihr", "sie (pl)"),
    ("ich", "er", "sie", "wir", "sie (pl)"),
    tuple(PRONOUNS),
]


def object_of(
    rng: random.Random, rule: tuple, subject: Phrase, habit: bool, used: list
) -> Object:
    """Something that the verb can be done to; `rule` is one of Verb.objects."""
    case, german, english, choices, articles = rule
    choice = pick(rng, choices)
    while choice in used:
        choice = pick(rng, choices)
    if isinstance(choice, Phrase):
        return Object(case, german, english, choice)
    if choice.group in PEOPLE and not articles and chance(rng, 0.3):
        them = pronoun(pick(rng, APART[subject.person])) if chance(rng, 0.75) else name(rng)
        if them.cases[case] and them.english != subject.english:
            return Object(case, german, english, them)
    return Object(
        case, german, english, noun_phrase(rng, choice, articles, subject, habit=habit)
    )


def suits(verb: Verb, when: str) -> bool:
    """Whether the verb can be said of that time."""
    wanted = verb.kind[0] != "s" and "u" not in verb.kind
    return {
        "now": verb.kind[0] in "as",
        "past": True,
        "habit": "h" in verb.kind,
        "future": wanted,
        "modal": wanted,
    }[when]


WHEN = ["now"] * 4 + ["past"] * 5 + ["future"] * 3 + ["habit"] * 2 + ["modal"] * 4
FRAMES_FOR = {when: [verb for verb in FRAMES if suits(verb, when)] for when in WHEN}
ACTIVE = {
    when: [verb for verb in verbs if verb.kind[0] != "s"] for when, verbs in FRAMES_FOR.items()
}


def clock(rng: random.Random, morning: bool) -> Pair:
    """An hour: um halb neun, at half past eight."""
    number = 5 + int(rng.random() * 4) if morning else int(rng.random() * 12)
    german, english = HOURS[number]
    next_hour = HOURS[(number + 1) % 12][0]
    full = f"um {'ein' if number == 0 else german} Uhr", f"at {english} o'clock"
    return pick(
        rng,
        [
            full,
            full,
            full,
            (f"um halb {next_hour}", f"at half past {english}"),
            (f"um Viertel nach {german}", f"at a quarter past {english}"),
            (f"um Viertel vor {german}", f"at a quarter to {english}"),
        ],
    )


def time_of(rng: random.Random, verb: Verb, when: str) -> Pair:
    """A time at which the verb can happen."""
    kind = next(letter for letter in "lmd" if letter in verb.kind)
    german, english, scale = pick(rng, [row for row in TIMES[when] if kind in row[2]])
    if "c" in scale and (kind == "m" or "c" in verb.kind and chance(rng, 0.5)):
        hour = clock(rng, kind == "m" or "Morgen" in german or "früh" in german)
        return f"{german} {hour[0]}", f"{english} {hour[1]}"
    return german, english


class Timing(NamedTuple):
    """When a clause happens, and what its verb looks like for that."""

    tense: str  # of the German verb
    form: str  # of the English verb
    modal: str
    time: tuple[str, str]
    frequency: tuple[str, str]


def timing_of(
    rng: random.Random, verb: "Verb", when: str, subject: "Phrase", timed: float
) -> Timing:
    """Draws the timing of a clause about `when`: now, past, future, habit or modal."""
    tense, form, modal, time, frequency = "present", "simple", "", ("", ""), ("", "")
    era, timely = when, verb.kind[0] != "s" and chance(rng, timed)
    if when == "now" and verb.kind[0] != "s":
        form = "progressive"
    elif when == "habit":
        timely = chance(rng, 0.5)
        frequency = frequency if timely else pick(rng, FREQUENCIES)
    elif when == "past":
        form = "past"
        tense = "past" if verb.kind[0] == "s" else pick(rng, ("perfect", "perfect", "past"))
        tense = "perfect" if subject.person in (1, 4) else tense  # not: du arbeitetest
    elif when == "future":
        tense, form = pick(rng, ("present", "future")), "will"
        timely = timely or tense == "present"
    elif when == "modal":
        era = pick(rng, ("past", "future", "future"))
        if era == "past":
            tense, form = "past", "past"
        modal = pick(
            rng, list(MODAL_PAST) if era == "past" else [*MODAL_PAST, "sollen", "möchten"]
        )
    if timely:
        time = time_of(rng, verb, era)
    return Timing(tense, form, modal, time, frequency)


def make(
    rng: random.Random,
    when: str = "",
    verbs=None,
    subject: Phrase | None = None,
    timed: float = 0.6,
    placed: float = 0.35,
    negated: float = 0.12,
    nouns_used=(),
) -> Clause:
    """A clause with one of the verbs, about `when`: now, past, future, habit or modal."""
    when = when or pick(rng, WHEN)
    verb = pick(rng, verbs or FRAMES_FOR[when])
    when = when if suits(verb, when) else "past"
    if not subject:  # where there is a choice, mostly people
        people = "person" in verb.subjects and chance(rng, 0.8)
        kind = "person" if people else pick(rng, verb.subjects)
        subject = (
            someone(rng, kind) if kind in FOLK else noun_phrase(rng, pick(rng, nouns(kind)))
        )
    used, objects = [subject.noun, *nouns_used], []
    for rule in verb.objects:
        objects.append(object_of(rng, rule, subject, when == "habit", used))
        used.append(objects[-1].phrase.noun)

    timing = timing_of(rng, verb, when, subject, timed)
    place = ("", "")
    no = (
        when != "habit"
        and chance(rng, negated)
        and not any(o.phrase.determiner in ("fixed", *NUMBERS) for o in objects)
    )
    if verb.need or verb.places and chance(rng, placed) and not no:
        at, to, at_en, to_en, _ = pick(rng, verb.places)
        place = (to, to_en) if verb.need == "to" else (at, at_en)
    if no:
        for i, (_, preposition, _, words) in enumerate(objects):
            if words.noun and words.determiner in INDEFINITES and not preposition:
                none = phrase(words.noun, "kein", words.plural, words.adjective)
                objects[i] = objects[i]._replace(phrase=none)
    return Clause(
        subject,
        verb,
        timing.tense,
        timing.form,
        timing.modal,
        tuple(objects),
        place,
        bool(verb.need),
        timing.time,
        timing.frequency,
        negated=no,
    )


# --- templates --------------------------------------------------------------------------------
#
# Each makes one kind of sentence, in both languages; where the dice have fallen badly, it
# begins again.

PRESENT_OR_PAST = ("now", "past")


def frames(names: str) -> list[Verb]:
    """All frames of some verbs."""
    return [verb for infinitive in names.split() for verb in BY_NAME[infinitive]]


def takes(verb: Verb, people: bool) -> bool:
    """Whether its last object is a person, or a thing in the accusative without a
    preposition."""
    if not verb.objects:
        return False
    case, german, _, choices, _ = verb.objects[-1]
    if not people and (case != CASES["acc"] or german):
        return False
    return all(isinstance(noun, Noun) and (noun.group in PEOPLE) == people for noun in choices)


THINGS = [verb for verb in ACTIVE["past"] if takes(verb, people=False)]
PLACED = [verb for verb in ACTIVE["now"] if verb.places and not verb.need]
COUNTABLE = [
    verb
    for verb in THINGS
    if verb.infinitive
    in ["essen", "kaufen", "lesen", "schreiben", "bekommen", "malen", "backen"]
]
BY_PERSON = [verb for verb in FRAMES if verb.subjects[0] in ("person", "adult")]
ASKED_FOR = {  # the verbs whose place or object a question word asks for
    "wo": PLACED + BY_NAME["wohnen"],
    "wohin": frames("gehen fahren fliegen reisen"),
    "was": THINGS + frames("lachen träumen freuen"),
    "wie viele": COUNTABLE,
    "wen": [verb for verb in FRAMES if len(verb.objects) == 1 and takes(verb, people=True)],
}


def statement(rng: random.Random) -> Pair:
    """Der Mann kauft heute einen Hut."""
    return tell(make(rng))


def time_first(rng: random.Random) -> Pair:
    """Morgen fährt der Mann nach Berlin: the verb stays second, so the subject follows it."""
    when = pick(rng, ("past", "future", "habit", "now", "past", "future"))
    clause = make(rng, when, ACTIVE[when], timed=1, negated=0.04)
    if not clause.time[0]:
        return time_first(rng)
    de, en = ("jetzt", "now") if clause.time[0] == "gerade" else clause.time
    clause = clause._replace(time=("", ""))
    return finish(clause.german(front=de), f"{en} {clause.english()}")


def object_first(rng: random.Random) -> Pair:
    """Diesen Film habe ich gesehen: the case tells that it is the object."""
    clause = make(rng, pick(rng, PRESENT_OR_PAST), THINGS, negated=0)
    thing = clause.objects[-1].phrase
    if thing.noun.gender != "m" or thing.plural or thing.determiner not in ("der", "dieser"):
        return object_first(rng)
    rest = clause._replace(objects=clause.objects[:-1])
    return finish(rest.german(front=thing.cases[1]), clause.english())


def make_asked(rng: random.Random, when: str, verbs=None, **options) -> Clause:
    """A clause that one may ask about: not what I am doing now."""
    while True:
        clause = make(rng, when, verbs, **options)
        subject = clause.subject
        unknown = clause.modal or clause.form == "will" or subject.pronoun not in ("ich", "wir")
        if unknown and subject.determiner != "ein":
            return clause


def question(rng: random.Random) -> Pair:
    """Hat der Mann das Fenster geöffnet?"""
    when = pick(rng, ("now", "past", "future", "modal", "past", "habit"))
    return ask(make_asked(rng, when, negated=0))


def w_question(rng: random.Random) -> Pair:
    """Wo arbeitet dein Bruder?"""
    word = pick(rng, ("wer", "was", "was", "wen", "wo", "wohin", "wann", "warum", "wie viele"))
    when = pick(rng, PRESENT_OR_PAST)
    if word == "wer":
        when = pick(rng, ("now", "past", "modal"))
        return tell(make(rng, when, BY_PERSON, fixed("wer", "who"), negated=0), "?")
    if word == "wann":
        when = pick(rng, ("past", "future"))
        clause = make_asked(rng, when, ACTIVE["future"], timed=0, negated=0)
        if clause.form == "will":
            clause = clause._replace(tense="future", time=("", ""))
        return ask(clause, "wann", "when")
    if word == "warum":
        when = pick(rng, ("now", "past", "modal"))
        return ask(make_asked(rng, when, negated=0.2), "warum", "why")
    if word in ("wo", "wohin"):
        clause = make_asked(rng, when, ASKED_FOR[word], placed=1, negated=0)
        return ask(clause._replace(place=("", "")), word, "where")
    clause = make_asked(rng, when, ASKED_FOR[word], negated=0, placed=0)
    case, german, _, words = clause.objects[-1]
    clause = without_object(clause)
    if word == "wen":
        return ask(clause, join(german, "wen" if case == CASES["acc"] else "wem"), "whom")
    if word == "was":
        if german:  # worauf, womit
            word = ("wor" if german[0] in "aeiouü" else "wo") + german
        return ask(clause, word, "what")
    if not words.noun.plural:
        return w_question(rng)
    many = phrase(words.noun, "", True)
    return ask(clause, "wie viele " + many.cases[case], "how many " + many.english)


def without_object(clause: Clause) -> Clause:
    """The clause with a gap for its last object, which a question word or relative replaces."""
    gap = clause.objects[-1]._replace(phrase=GAP)
    doubled = clause.verb.english.tail.endswith("on")  # not: "that you switched on on Monday"
    return clause._replace(
        objects=(*clause.objects[:-1], gap), time=("", "") if doubled else clause.time
    )


DEGREES = [("sehr", "very"), ("ziemlich", "quite"), ("", ""), ("", ""), ("", "")]
DESCRIBED = [noun for noun in WORDS.values() if PREDICATES[noun.word]]
POSSESSED = nouns("thing piece device clothes vehicle furniture home pet")


def copula(
    subject: Phrase, predicate: Pair, tense: str = "present", negated: bool = False
) -> Clause:
    """X ist Y."""
    return Clause(
        subject,
        SEIN,
        tense,
        "past" if tense == "past" else "simple",
        predicate=predicate,
        negated=negated,
    )


def plainly(words: Phrase) -> Phrase:
    """The noun phrase without its adjective."""
    return phrase(words.noun, words.determiner, words.plural) if words.noun else words


def description(rng: random.Random) -> Pair:
    """Dieses Auto ist ziemlich alt; wie teuer war das Auto?"""
    if chance(rng, 0.35):
        subject, adjectives = plainly(someone(rng, pronouns=0.4)), PREDICATES["person"]
    else:
        noun = pick(rng, DESCRIBED)
        more = (
            ["mein", "dein", "unser"] if noun in POSSESSED else ["die"] if noun.plural else []
        )
        articles = ["der", "dieser", *more]
        subject, adjectives = (
            noun_phrase(rng, noun, articles, adjective=0),
            PREDICATES[noun.word],
        )
    de, en = pick(rng, adjectives)
    tense, style = pick(rng, ("present", "present", "past")), rng.random()
    if style < 0.2:
        return tell(copula(subject, (de, en), tense, negated=True))
    if style < 0.3:
        return ask(copula(subject, (de, en), tense))
    if style < 0.4 and de in ("alt", "groß", "lang", "teuer", "schwer"):
        return ask(copula(subject, ("", ""), tense), "wie " + de, "how " + en)
    degree = ("", "") if de in ABSOLUTE else pick(rng, DEGREES)
    return tell(copula(subject, (join(degree[0], de), join(degree[1], en)), tense))


def compared(de: str, en: str) -> Pair:
    """(alt, old) -> (älter, older)."""
    more = de.removesuffix("e")
    if de in UMLAUTED:
        more = umlaut(de)
    elif de == "teuer":
        more = "teur"
    if en in MORE:
        return more + "er", MORE[en]
    if en.endswith("y") and len(en) < 9:
        return more + "er", en[:-1] + "ier"
    short = en.removesuffix("e")
    return more + "er", short + "er" if len(
        re.findall("[aeiouy]+", short)
    ) == 1 else "more " + en


COMPARABLE = [
    "pet",
    "grazer",
    "clothes",
    "dress",
    "thing",
    "device",
    "furniture",
    "vehicle",
    "building",
    "text",
    "topic",
    "matter",
]


def comparison(rng: random.Random) -> Pair:
    """Dieser Koffer ist schwerer als die Tasche; er ist nicht so schwer wie die Tasche."""
    if chance(rng, 0.4):
        subject, other = plainly(someone(rng)), plainly(someone(rng, pronouns=0))
        rows = PREDICATES["person"]
        if "ein" in (subject.determiner, other.determiner) or other.english == subject.english:
            return comparison(rng)
    else:
        pair = rng.sample(GROUPS[pick(rng, COMPARABLE)], 2)
        rows = [row for row in PREDICATES[pair[0].word] if row in PREDICATES[pair[1].word]]
        articles = ("der", "dieser", "mein") if pair[0].group in PERSONAL else ("der", "dieser")
        subject, other = (noun_phrase(rng, noun, articles, adjective=0) for noun in pair)
    de, en = pick(rng, [row for row in rows if row[0] not in ABSOLUTE])
    if chance(rng, 0.3):
        no = chance(rng, 0.5)
        so, as_ = ("so", "as") if no else ("genauso", "just as")
        predicate = f"{so} {de} wie {other.cases[0]}", f"{as_} {en} as {other.english_object}"
        return tell(copula(subject, predicate, negated=no))
    more, more_en = compared(de, en)
    predicate = f"{more} als {other.cases[0]}", f"{more_en} than {other.english_object}"
    return tell(copula(subject, predicate))


# Where things and animals are put and found: (preposition, in English where and where to,
# landmarks).
SPOTS = [
    ("auf", "on", "on", "Tisch Stuhl Sofa Bett Regal Boden Teppich Sessel"),
    ("unter", "under", "under", "Tisch Bett Stuhl Sofa Regal"),
    ("neben", "next to", "next to", "Tisch Bett Sofa Schrank Tür Fenster Regal Sessel Lampe"),
    ("vor", "in front of", "in front of", "Tür Schrank Sofa Fenster Bett"),
    ("hinter", "behind", "behind", "Tür Sofa Schrank Sessel"),
    ("in", "in", "into", "Schublade Kiste Tasche Schrank Rucksack"),
]
LYING = [
    "Buch",
    "Zeitung",
    "Brief",
    "Schlüssel",
    "Handy",
    "Stift",
    "Kissen",
    "Messer",
    "Gabel",
    "Löffel",
    "Kamera",
    "Ball",
    "Hemd",
    "Schal",
]
STANDING = ["Vase", "Flasche", "Glas", "Tasse", "Teller", "Kerze", "Koffer", "Radio", "Wecker"]


def position(rng: random.Random) -> Pair:
    """Das Buch liegt auf dem Tisch (dative: where); er legt es auf den Tisch (accusative:
    to)."""
    kind, lying = pick(rng, ("thing", "animal", "put")), chance(rng, 0.6)
    if kind == "animal":
        noun = pick(rng, GROUPS["pet"])
    else:
        noun = WORDS[pick(rng, LYING if lying else STANDING)]
    fitting = "auf neben" if not lying else "auf unter neben in"
    fitting = "auf unter neben vor hinter" if kind == "animal" else fitting
    preposition, at, to, landmarks = pick(
        rng, [row for row in SPOTS if row[0] in fitting.split()]
    )
    bad = noun.word if kind != "animal" else "Regal"
    landmark = pick(rng, [WORDS[word] for word in landmarks.split() if word != bad])
    land = noun_phrase(rng, landmark, ("der",))
    case = CASES["acc" if kind == "put" else "dat"]
    place = (
        contract(f"{preposition} {land.cases[case]}"),
        f"{to if kind == 'put' else at} {land.english}",
    )
    when = pick(rng, PRESENT_OR_PAST)
    mine = noun.group in PERSONAL
    if kind == "put":
        subject = someone(rng)
        articles = ("der", "der", "own", "ein") if mine else ("der", "ein")
        thing = noun_phrase(rng, noun, articles, subject)
        verb = read_verb("legen" if lying else "stellen", "put", "ad")
        when = pick(rng, (*PRESENT_OR_PAST, "modal", "future"))
        clause = make(rng, when, [verb], subject, negated=0)
        clause = clause._replace(objects=(Object(CASES["acc"], "", "", thing),))
    elif kind == "animal":
        verb = read_verb(*(("liegen", "lie") if lying else ("sitzen", "sit")), "ad")
        clause = make(rng, when, [verb], noun_phrase(rng, noun), timed=0, negated=0)
    else:  # of a thing, English says no more than "is"
        verb = read_verb("liegen" if lying else "stehen", "be")
        subject = noun_phrase(
            rng, noun, ("der", "mein", "dein", "dieser") if mine else ("der",)
        )
        clause = make(rng, when, [verb], subject, negated=0)
        if chance(rng, 0.3):
            return ask(clause, "wo", "where")
    clause = clause._replace(place=place, directed=True)
    if chance(rng, 0.2) and clause.subject.pronoun not in ("ich", "wir"):
        return ask(clause)
    return tell(clause)


def echo(clause: Clause) -> Clause:
    """The clause with a pronoun for its subject."""
    return clause._replace(subject=pronoun(clause.subject.pronoun))


def combine(rng: random.Random, de: str, en: str, sub: Clause, main: Clause) -> Pair:
    """Two clauses, one of them with the conjunction, in either order; the noun is in the
    first."""
    same = sub.subject is main.subject
    if chance(rng, 0.5):
        main = echo(main) if same else main
        return finish(
            f"{de} {sub.german('last')}, {main.german('first')}",
            f"{en} {sub.english()}, {main.english()}",
        )
    sub = echo(sub) if same else sub
    return finish(
        f"{main.german()}, {de} {sub.german('last')}", f"{main.english()} {en} {sub.english()}"
    )


def make_clear(
    rng: random.Random, when: str, verbs, subject: Phrase | None = None, **options
) -> Clause:
    """A clause about someone whom a pronoun can stand for."""
    while True:
        clause = make(rng, when, verbs, subject, timed=0, placed=0.2, negated=0, **options)
        if clause.subject.pronoun and clause.subject.determiner != "ein":
            return clause


REASONS = [  # (how one is, what one does because of it, what one does all the same)
    (
        "müde",
        "tired",
        "schlafen ausruhen",
        "arbeiten lernen tanzen einkaufen aufräumen helfen kochen",
    ),
    ("hungrig", "hungry", "essen kochen backen", "arbeiten lernen warten"),
    ("durstig", "thirsty", "trinken", "arbeiten warten tanzen"),
    (
        "krank",
        "ill",
        "schlafen ausruhen",
        "arbeiten tanzen reisen ausgehen schwimmen einkaufen putzen",
    ),
    ("glücklich", "happy", "singen tanzen", "weinen"),
    ("traurig", "sad", "weinen", "singen tanzen ausgehen"),
    ("faul", "lazy", "fernsehen schlafen", "putzen aufräumen helfen lernen"),
    ("fleißig", "hard-working", "arbeiten lernen putzen aufräumen", "fernsehen schlafen"),
    ("reich", "rich", "reisen fliegen bauen", "arbeiten"),
    ("nervös", "nervous", "beeilen weinen", "zuhören schlafen tanzen"),
]


def reason(rng: random.Random) -> Pair:
    """Er bleibt zu Hause, weil er krank ist; obwohl, denn, deshalb, aber."""
    de, en, because, although = pick(rng, REASONS)
    style = pick(rng, ("weil", "weil", "obwohl", "deshalb", "denn", "aber"))
    when = pick(rng, PRESENT_OR_PAST)
    main = make_clear(rng, when, frames(although if style in ("obwohl", "aber") else because))
    if main.subject.adjective[0]:
        return reason(rng)
    state = copula(main.subject, (de, en), "past" if when == "past" else "present")
    if style == "aber":
        return both(state, ", aber", ", but", echo(main))
    if style == "deshalb":
        return both(state, ", deshalb", ", so", echo(main), "first")
    if style == "denn":
        return both(main, ", denn", " because", echo(state))
    return combine(rng, style, "because" if style == "weil" else "although", state, main)


SAYING = [
    read_verb("glauben", "believe"),
    read_verb("wissen", "know"),
    read_verb("sagen", "say"),
    read_verb("hoffen", "hope"),
    read_verb("denken", "think"),
]


def content(rng: random.Random) -> Pair:
    """Ich glaube, dass der Mann das Auto verkauft; ich weiß nicht, ob, warum er es verkauft."""
    de, en = pick(
        rng, (("dass", "that"), ("dass", "that"), ("ob", "whether"), ("warum", "why"))
    )
    when = pick(rng, ("now", "past", "future", "modal", "past"))
    clause = make_asked(rng, when, negated=0.1 if de == "dass" else 0)
    main = Clause(someone(rng, pronouns=0.5), pick(rng, SAYING) if de == "dass" else SAYING[1])
    words = set(main.subject.english.split()) - {*DETERMINERS.values(), "and"}
    if words & set(clause.subject.english.split()):
        return content(rng)
    end, end_en = f", {de} {clause.german('last')}", f" {en} {clause.english()}"
    if de != "dass" and main.subject.pronoun in ("du", "ihr"):
        return finish(main.german("first") + end, main.english("question") + end_en, "?")
    main = main._replace(negated=de != "dass")
    return finish(main.german() + end, main.english() + end_en)


LASTING = frames(
    "schlafen arbeiten lesen kochen tanzen lernen essen trinken schreiben putzen "
    "fernsehen singen schwimmen waschen aufräumen warten spielen hören ausruhen"
)
SUDDEN = frames("ankommen anrufen zurückkommen aufwachen")
EVERYDAY = [
    verb
    for verb in ACTIVE["now"]
    if verb.subjects[0] == "person"
    and not set("lmu") & set(verb.kind)
    and verb.infinitive not in ("schlafen", "beeilen", "bleiben")
]


def narrated(rng: random.Random, verbs, subject: Phrase | None = None, **options) -> Clause:
    """A clause in the Präteritum, without a time."""
    clause = make_clear(rng, "past", verbs, subject, **options)
    while clause.subject.person in (1, 4):
        clause = make_clear(rng, "past", verbs, subject, **options)
    return clause._replace(tense="past")


def same_one(first: Clause, second: Clause) -> bool:
    """Whether the subjects are the same, or made from the same noun."""
    one, other = first.subject, second.subject
    return one.english == other.english or one.noun is not None and one.noun == other.noun


def sequence(rng: random.Random) -> Pair:
    """Nachdem er gegessen hatte, las er; während, als, bevor."""
    de, en = pick(
        rng, (("während", "while"), ("als", "when"), ("nachdem", "after"), ("bevor", "before"))
    )
    if de in ("während", "als"):
        first = narrated(rng, SUDDEN if de == "als" else LASTING)
        second = narrated(rng, LASTING, nouns_used=(first.subject.noun,))
        if same_one(first, second):
            return sequence(rng)
        if de == "als":
            return combine(rng, de, en, first, second._replace(form="past progressive"))
        return combine(rng, de, en, first._replace(form="past progressive"), second)
    first = narrated(rng, EVERYDAY)
    second = narrated(rng, EVERYDAY, first.subject)
    if second.verb.base == first.verb.base:
        return sequence(rng)
    if de == "nachdem":
        first = first._replace(tense="pluperfect", form="past perfect")
    return combine(rng, de, en, first, second)


LEISURE = (
    frames(
        "lesen fernsehen kochen backen hören aufräumen schreiben schwimmen wandern tanzen "
        "malen besuchen einkaufen helfen"
    )
    + BY_NAME["spazieren gehen"]
)
WEATHER = [
    ("es regnet", "it rains"),
    ("es kalt ist", "it is cold"),
    ("die Sonne scheint", "the sun shines"),
    ("das Wetter schön ist", "the weather is nice"),
    ("das Wetter schlecht ist", "the weather is bad"),
]


def condition(rng: random.Random) -> Pair:
    """Wenn die Sonne scheint, werden wir schwimmen; er liest, wenn er Zeit hat."""
    main = make_clear(rng, "now", LEISURE)
    main = main._replace(form="simple", modal=pick(rng, ("", "", "wollen", "können")))
    if not main.modal and chance(rng, 0.6):
        main = main._replace(tense="future", form="will")
    if chance(rng, 0.5):
        time = Object(CASES["acc"], "", "", fixed("Zeit", "time", "fixed"))
        having = Clause(main.subject, BY_NAME["haben"][0], objects=(time,))
        return combine(rng, "wenn", "if", having, main)
    de, en = pick(rng, WEATHER)
    if chance(rng, 0.5):
        return finish(f"wenn {de}, {main.german('first')}", f"if {en}, {main.english()}")
    return finish(f"{main.german()}, wenn {de}", f"{main.english()} if {en}")


ORDERS = frames(
    "öffnen schließen essen lesen schreiben putzen waschen aufräumen kaufen bringen geben "
    "zeigen "
    "schicken helfen warten fragen antworten zuhören anrufen abholen einladen einschalten "
    "ausschalten gehen bleiben fahren füttern bezahlen nehmen schneiden mitbringen vorlesen "
    "lernen "
    "schlafen beeilen erklären"
)
WARNINGS = frames(
    "vergessen verlieren verkaufen öffnen schließen essen trinken fragen anrufen "
    "einladen kaufen weinen warten"
)


def imperative(rng: random.Random) -> Pair:
    """Öffne das Fenster! Bitte kauft das Auto nicht!"""
    who, no = pronoun(pick(rng, ("du", "ihr"))), chance(rng, 0.25)
    clause = make(rng, "past", WARNINGS if no else ORDERS, who, timed=0, placed=0.1, negated=no)
    if no != clause.negated:
        return imperative(rng)
    verb, stem = clause.verb, present(clause.verb)[0].removesuffix("e")
    if who.person == 4:
        order = present(verb)[4]  # lest!
    elif "i" in verb.third and "i" not in verb.base:
        order = verb.third[:-1]  # lies!
    else:
        order = stem + "e" if is_hard(stem) or stem.endswith("er") else stem
    reflexive = REFLEXIVE[who.person] if verb.reflexive else ""
    german = join(order, reflexive, *clause.middle(), verb.prefix.strip())
    english = join("do not" if no else "", clause.english("infinitive"))
    if chance(rng, 0.4):
        german, english = "bitte " + german, "please " + english
    return finish(german, english, "!")


def coordination(rng: random.Random) -> Pair:
    """Der Vater kocht und die Mutter liest; er sucht den Hund, aber er kann ihn nicht
    finden."""
    if chance(rng, 0.4):
        search = make_clear(rng, "now", BY_NAME["suchen"])
        thing = search.objects[0].phrase
        if thing.noun is None:
            return coordination(rng)
        german = (
            "sie" if thing.plural else {"m": "ihn", "f": "sie", "n": "es"}[thing.noun.gender]
        )
        english = "it" if thing.noun.group != "kin" else "him" if german == "ihn" else "her"
        it = fixed(german, "them" if thing.plural else english, light=True)
        find = Clause(
            search.subject,
            BY_NAME["finden"][0],
            modal="können",
            negated=True,
            objects=(Object(CASES["acc"], "", "", it),),
        )
        return both(search, ", aber", ", but", echo(find))
    when = pick(rng, PRESENT_OR_PAST)
    first = make(rng, when, LASTING, timed=0.3, negated=0)
    second = make(rng, when, LASTING, timed=0, negated=0, nouns_used=(first.subject.noun,))
    if second.verb == first.verb or same_one(first, second):
        return coordination(rng)
    return both(first, *pick(rng, ((" und", " and"), (", aber", ", but"))), second)


RELATIVES = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "denen"),
}
TRANSITIVE = [
    verb
    for verb in BY_PERSON
    if verb.objects
    and verb.infinitive not in ("haben", "putzen")
    and all(isinstance(noun, Noun) for noun in verb.objects[-1][3])
]


def relative(rng: random.Random) -> Pair:
    """Das Buch, das ich gekauft habe, ist interessant; ich kenne den Mann, der im Park
    arbeitet."""
    when, beasts = pick(rng, PRESENT_OR_PAST), (*PEOPLE, "pet", "grazer")
    by_subject = chance(rng, 0.45)
    if by_subject:  # the man who is reading
        noun = pick(rng, FOLK["person"])
        head = noun_phrase(rng, noun, ("der", "der", "die"))
        able = ("person",) if noun.group == "child" else ("person", "adult")
        verbs = [verb for verb in FRAMES_FOR[when] if verb.subjects[0] in able]
        clause = make(rng, when, verbs, head, timed=0.25)
        gender = "p" if head.plural else noun.gender
        vague = any(
            o.phrase.noun and o.phrase.noun.group in beasts and o.case == 1 and not o.german
            for o in clause.objects
        )
        if vague and gender != "m":  # die Frau, die die Katze sucht: who seeks whom?
            return relative(rng)
        who = head._replace(cases=RELATIVES[gender], english="who", light=True)
        inner = clause._replace(subject=who)
        german, english = inner.german("last"), inner.english()
    else:  # the book that I am reading
        subject = None
        if chance(rng, 0.6):
            subject = pronoun(pick(rng, ("ich", "du", "er", "wir", "ihr")))
        clause = make(rng, when, TRANSITIVE, subject, timed=0.25, negated=0)
        case, german, _, thing = clause.objects[-1]
        noun = thing.noun
        if (
            noun is None
            or noun.group == "kin"
            or clause.subject.pronoun in ("sie", "sie (pl)")
            or (clause.subject.noun and noun.group in beasts)
        ):
            return relative(rng)
        head = phrase(noun, "der", thing.plural, thing.adjective)
        inner = without_object(clause)
        gender = "p" if head.plural else noun.gender
        german = join(german, RELATIVES[gender][case], inner.german("last"))
        english = f"{'whom' if noun.group in PEOPLE else 'that'} {inner.english()}"

    people, end = noun.group in PEOPLE, rng.random()
    adjectives = PREDICATES[noun.word]
    if end < 0.4 and adjectives and not head.adjective[0]:
        past = when == "past" and noun.group in USED_UP | {"topic"}  # a coat is red still
        state = copula(
            GAP._replace(person=head.person),
            pick(rng, adjectives),
            "past" if past else "present",
        )
        return finish(
            f"{head.cases[0]}, {german}, {state.german()}",
            f"{head.english} {english} {state.english()}",
        )
    if end < 0.6:
        be = ("das sind", "those are") if head.plural else ("das ist", "that is")
        return finish(f"{be[0]} {head.cases[0]}, {german}", f"{be[1]} {head.english} {english}")
    likeable = PERSONAL | {"furniture", "vehicle", "text", "home", "building"}
    if not people and noun.group not in likeable:
        return relative(rng)
    subject = someone(rng, pronouns=0.6) if people else pronoun(pick(rng, ("ich", "wir", "er")))
    if subject.noun == noun:
        return relative(rng)
    knowing = Clause(
        subject,
        BY_NAME["kennen" if people else "mögen"][0],
        objects=(Object(CASES["acc"], "", "", head),),
    )
    return finish(f"{knowing.german()}, {german}", f"{knowing.english()} {english}")


# --- phrases ----------------------------------------------------------------------------------
#
# What people say first: phrases.txt has the patterns, and says how they are written.

TEENS = dict(
    zip(
        ["dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"],
        ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"],
    )
)
TENS = dict(
    zip(
        [
            "zwanzig",
            "dreißig",
            "vierzig",
            "fünfzig",
            "sechzig",
            "siebzig",
            "achtzig",
            "neunzig",
        ],
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"],
    )
)


def numbers() -> list[Pair]:
    """The numbers from 2 to 99, in words and in digits."""
    ones = [("ein", "one"), *list(NUMBERS.items())[:8]]
    mixed = [
        (f"{one}und{ten}", f"{ten_en}-{one_en}")
        for ten, ten_en in TENS.items()
        for one, one_en in ones
    ]
    digits = [(str(number), str(number)) for number in range(2, 100)]
    return [*NUMBERS.items(), *TEENS.items(), *TENS.items(), *mixed, *digits]


class Pattern(NamedTuple):
    """A line of phrases.txt: ways to say it in German, and the English."""

    german: tuple[str, ...]
    english: str

    @property
    def is_sentence(self) -> bool:
        """Whether it is said as it stands; else it is an infinitive, said of anyone."""
        return self.english[-1] in ".?!"


def read_phrases() -> tuple[dict[str, list], list[Pattern]]:
    """Returns the lists of phrases.txt, of nouns or of (German, English), and its patterns."""
    entries: dict[str, list[str]] = {}
    patterns = []
    for line in PHRASES.read_text(encoding="utf-8").splitlines():
        is_list = re.fullmatch(r"\{(\w+)\}: (.*)", line)
        if is_list:
            entries.setdefault(is_list[1], []).extend(is_list[2].split(", "))
        elif line and line[0] != "#":
            german, english = line.split(" = ")
            patterns.append(Pattern(tuple(german.split(" / ")), english))
    lists = {name: read_list(rows) for name, rows in entries.items()}
    return {"number": numbers(), **lists}, patterns


def read_list(rows: list[str]) -> list:
    """Nouns, if each entry has its article; else pairs of German and English."""
    if all(re.match("(der|die|das) ", row) for row in rows):
        return [read_noun(row.replace(" = ", " "), "phrase") for row in rows]
    pairs = [row.partition(" = ") for row in rows]
    return [(german, english or german) for german, _, english in pairs]


LISTS, PATTERNS = read_phrases()
FORMS = {  # the masculine form of an article -> the article, and the case
    "der": ("der", "nom"),
    "den": ("der", "acc"),
    "dem": ("der", "dat"),
    **{word: (word, "nom") for word in ("ein", "kein", "mein", "dein")},
    **{word + "en": (word, "acc") for word in ("ein", "kein", "mein", "dein")},
    **{word + "em": (word, "dat") for word in ("ein", "kein", "mein", "dein")},
}
SLOT = re.compile(r"\{(?:(\w+) )?(([a-z]+)\d?)\}")  # {city}, {einen pet}, {name2}


def fill(rng: random.Random, german: str, english: str) -> Pair:
    """The pattern with something in each slot; what is in brackets stays or goes."""
    if "[" in german:
        brackets = r"\[(.*?)\]" if chance(rng, 0.5) else r"\[.*?\]()"
        german, english = (re.sub(brackets, r"\1", text) for text in (german, english))
    chosen: dict[str, Pair | Noun] = {}
    for _, slot, name in SLOT.findall(german):
        while slot not in chosen or list(chosen.values()).count(chosen[slot]) > 1:
            chosen[slot] = pick(rng, LISTS[name])

    def word(match: re.Match, language: int) -> str:
        article, slot, _ = match.groups()
        value = chosen[slot]
        if not isinstance(value, Noun):
            return value[language]
        determiner, case = FORMS[article] if article else ("", "nom")
        words = phrase(value, determiner, plural=not article)
        return words.english if language else words.cases[CASES[case]]

    german = SLOT.sub(lambda match: word(match, 0), german)
    german = re.sub(r"\bzu de[mr]\b", lambda match: contract(match[0]), german)
    english = SLOT.sub(lambda match: word(match, 1), english)
    return german, re.sub(r"\b([Aa])n? (?=(\w+))", with_article, english)


def with_article(match: re.Match) -> str:
    """a or an, by the sound of the next word."""
    article, word = match.groups()
    vowel = word[0].lower() in "aeiou" and not word.startswith(("uni", "one", "Euro"))
    return article + ("n " if vowel else " ")


FORMAL = Phrase(("Sie", "Sie", "Ihnen"), "you", "you", person=5, light=True)


def anyone(rng: random.Random, asked: bool) -> Phrase:
    """A subject, as they are said and asked: I and you, a name, my brother."""
    chosen = rng.random()
    if chosen < 0.4:
        return pronoun("du" if asked else "ich")
    if asked and chosen < 0.65:
        return FORMAL
    if chosen < 0.8:
        keys = [key for key in PRONOUNS if not (asked and key in ("ich", "wir", "sie (pl)"))]
        return pronoun(pick(rng, keys))
    if chosen < 0.9:
        german, english = pick(rng, LISTS["name"])
        return fixed(german, english)
    if chosen < 0.95:
        return phrase(pick(rng, FOLK["person"]))
    kin = [noun for noun in GROUPS["kin"] if noun.gender != "p"]
    return phrase(pick(rng, kin), "dein" if asked else "mein")


def of_anyone(rng: random.Random, pattern: Pattern) -> Pair:
    """An infinitive, said or asked of somebody: (nicht) müde sein -> Bist du müde?"""
    german, english = fill(rng, pick(rng, pattern.german), pattern.english)
    asks, _, german = german.rpartition(": ")
    asks_en, _, english = english.rpartition(": ")
    denied_en = english.startswith("not ")
    denied = german.startswith("(nicht) ") and chance(rng, 0.2)
    rest, _, infinitive = german.removeprefix("(nicht) ").rpartition(" ")
    asked = bool(asks) or chance(rng, 0.4)
    verb = read_verb(infinitive, english.removeprefix("not "))
    clause = Clause(anyone(rng, asked), verb, predicate=(rest, ""), negated=denied)
    german = clause.german("first" if asked else "second", asks)
    clause = clause._replace(predicate=("", ""), negated=denied or denied_en)
    english = join(asks_en, clause.english("question" if asked else "statement"))
    return finish(german, english, "?" if asked else ".")


def typed(rng: random.Random, german: str) -> str:
    """The sentence as people type it: half of them without its mark, or without capitals."""
    bare = german.rstrip(".!?")
    other_mark = bare + ("!" if german[-1] == "." else "?" if german[-1] == "?" else ".")
    small = bare.lower()
    careless = (bare, small, german.lower(), small.replace(",", ""), other_mark)
    return german if chance(rng, 0.5) else pick(rng, careless)


def said(rng: random.Random) -> Pair:
    """Guten Morgen; wie geht's? Ich komme aus Berlin."""
    pattern = pick(rng, PATTERNS)
    if pattern.is_sentence:
        german, english = fill(rng, pick(rng, pattern.german), pattern.english)
        german, english = finish(german, english, "")
    else:
        german, english = of_anyone(rng, pattern)
    return typed(rng, german), english


# --- corpus -----------------------------------------------------------------------------------

TEMPLATES = [
    *30 * [said],
    *4 * [statement],
    *3 * [time_first, question, w_question],
    *2 * [description, position, relative, content, reason],
    *[condition, sequence, coordination],
    *[object_first, comparison, imperative],
]
KINDS = {  # what a sentence of the grammar does; a classifier learns to tell
    "statement": [statement],  # the subject first
    "inversion": [time_first, object_first],  # something else first
    "request": [question, w_question, imperative],  # wants an answer or a deed
    "description": [description, comparison, position],  # what is how, or where
    "relative": [relative],  # tells whom or what it is about
    "reason": [reason, condition],  # why, although what, on which condition
    "events": [sequence, coordination],  # two that go together
    "opinion": [content],  # what somebody thinks, knows or says
}


def corpus(
    seed: int = 1, train: int = 26_000, valid: int = 1_000, test: int = 1_000
) -> dict[str, list[tuple[str, str, str]]]:
    """Returns the rows (German, English, kind) of each part, by seed and sizes alone.

    No German sentence occurs twice, in one part or in two. A phrase has no kind: "". Raises
    ValueError for more than there is to say.
    """
    kind_of = {template: kind for kind, templates in KINDS.items() for template in templates}
    sizes = {"train": train, "valid": valid, "test": test}
    total = sum(sizes.values())
    if min(sizes.values()) < 0:
        raise ValueError(f"a part of the corpus cannot have {min(sizes.values())} sentences")
    rng = random.Random(seed)
    rows: dict[str, tuple[str, str, str]] = {}
    repeats = 0
    while len(rows) < total:
        template = pick(rng, TEMPLATES)
        german, english = template(rng)
        repeats = repeats + 1 if german in rows else 0
        if repeats == 10_000:
            raise ValueError(
                f"{total:,} sentences were asked for, and there are about {len(rows):,}"
            )
        rows.setdefault(german, (german, english, kind_of.get(template, "")))
    rest = iter(rows.values())
    return {part: [next(rest) for _ in range(size)] for part, size in sizes.items()}


def packed() -> bytes:
    """Returns the content of support/corpora/phrasebook.tsv.gz, the same each time."""
    rows = [row for part in corpus().values() for row in part]
    text = "".join("\t".join(row) + "\n" for row in rows)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="?", type=int, default=20, help="how many to print [20]")
    parser.add_argument("--seed", type=int, default=1, help="which [1]")
    parser.add_argument("--write", action="store_true", help="write the corpus's file instead")
    args = parser.parse_args()
    if args.write:
        DATA.write_bytes(packed())
        return
    for german, english, _ in corpus(args.seed, args.pairs, 0, 0)["train"]:
        print(german, english, sep="\t")


if __name__ == "__main__":
    main()
