"""A German-English phrasebook that writes itself: a grammar of everyday sentences, in both languages at once.

    python phrasebook.py                     # twenty sample pairs, German and English, tab-separated
    python phrasebook.py 200 --seed 7        # two hundred others, for proof-reading
    phrasebook.corpus()["train"][0]          # ("Morgen fährt der Mann nach Berlin.", "Tomorrow ...")

A sentence is built from a lexicon (nouns, verbs, adjectives, places, times) that knows what goes with
what: bread is eaten, letters are written, and only people wear hats. One clause is rendered twice, by the
rules of German word order and by those of English. The English follows from the German alone:

    Präsens            of an activity      ->  is reading        (Er liest ein Buch.)
                       of a state          ->  knows             (Er kennt den Arzt.)
                       with a habit        ->  reads             (Er liest jeden Tag.)
                       with a future time  ->  will read         (Er liest morgen das Buch.)
    Perfekt, Präteritum                    ->  read, did not read
    Plusquamperfekt                        ->  had read
    werden + infinitive                    ->  will read

so a translator that has learned the rules can be right about sentences that it has never seen.
"""

import argparse
import random
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

# ---------------------------------------------------------------------------------------------- nouns
#
# By what can be said of them: (singular, gender, plural, English). Gender "mn" is the n-declension
# (der Junge, den Jungen), "p" a word used in the plural only; a plural "" is a mass noun (bread, water).

NOUNS = {
    "adult": [
        ("Mann", "m", "Männer", "man"), ("Frau", "f", "Frauen", "woman"),
        ("Student", "mn", "Studenten", "student"),
        ("Studentin", "f", "Studentinnen", "student"), ("Polizist", "mn", "Polizisten", "policeman"),
        ("Verkäuferin", "f", "Verkäuferinnen", "shop assistant"), ("Koch", "m", "Köche", "cook"),
        ("Künstler", "m", "Künstler", "artist"), ("Sängerin", "f", "Sängerinnen", "singer"),
        ("Bauer", "mn", "Bauern", "farmer"), ("Bäcker", "m", "Bäcker", "baker"),
        ("Kellner", "m", "Kellner", "waiter"), ("Tourist", "mn", "Touristen", "tourist"),
        ("Ingenieur", "m", "Ingenieure", "engineer"),
    ],
    "contact": [
        ("Nachbar", "mn", "Nachbarn", "neighbour"), ("Nachbarin", "f", "Nachbarinnen", "neighbour"),
        ("Kollege", "mn", "Kollegen", "colleague"), ("Kollegin", "f", "Kolleginnen", "colleague"),
        ("Lehrer", "m", "Lehrer", "teacher"), ("Lehrerin", "f", "Lehrerinnen", "teacher"),
        ("Arzt", "m", "Ärzte", "doctor"), ("Ärztin", "f", "Ärztinnen", "doctor"),
        ("Chef", "m", "Chefs", "boss"), ("Gast", "m", "Gäste", "guest"),
    ],
    "child": [
        ("Junge", "mn", "Jungen", "boy"), ("Mädchen", "n", "Mädchen", "girl"),
        ("Kind", "n", "Kinder", "child"),
        ("Schüler", "m", "Schüler", "pupil"), ("Schülerin", "f", "Schülerinnen", "pupil"),
    ],
    "kin": [
        ("Vater", "m", "Väter", "father"), ("Mutter", "f", "Mütter", "mother"),
        ("Bruder", "m", "Brüder", "brother"), ("Schwester", "f", "Schwestern", "sister"),
        ("Onkel", "m", "Onkel", "uncle"), ("Tante", "f", "Tanten", "aunt"), ("Sohn", "m", "Söhne", "son"),
        ("Tochter", "f", "Töchter", "daughter"), ("Großvater", "m", "Großväter", "grandfather"),
        ("Großmutter", "f", "Großmütter", "grandmother"), ("Eltern", "p", "Eltern", "parents"),
        ("Großeltern", "p", "Großeltern", "grandparents"), ("Freunde", "p", "Freunde", "friends"),
    ],
    "pet": [("Hund", "m", "Hunde", "dog"), ("Katze", "f", "Katzen", "cat")],
    "grazer": [
        ("Pferd", "n", "Pferde", "horse"), ("Kuh", "f", "Kühe", "cow"), ("Schaf", "n", "Schafe", "sheep"),
        ("Kaninchen", "n", "Kaninchen", "rabbit"),
    ],
    "food": [
        ("Apfel", "m", "Äpfel", "apple"), ("Birne", "f", "Birnen", "pear"),
        ("Banane", "f", "Bananen", "banana"),
        ("Orange", "f", "Orangen", "orange"), ("Tomate", "f", "Tomaten", "tomato"),
        ("Kartoffel", "f", "Kartoffeln", "potato"), ("Ei", "n", "Eier", "egg"),
        ("Kuchen", "m", "Kuchen", "cake"), ("Brötchen", "n", "Brötchen", "roll"),
        ("Keks", "m", "Kekse", "biscuit"),
    ],
    "dish": [
        ("Brot", "n", "", "bread"), ("Käse", "m", "", "cheese"), ("Fleisch", "n", "", "meat"),
        ("Fisch", "m", "", "fish"), ("Suppe", "f", "", "soup"), ("Reis", "m", "", "rice"),
        ("Salat", "m", "", "salad"), ("Schokolade", "f", "", "chocolate"), ("Obst", "n", "", "fruit"),
    ],
    "drink": [
        ("Wasser", "n", "", "water"), ("Kaffee", "m", "", "coffee"), ("Tee", "m", "", "tea"),
        ("Milch", "f", "", "milk"), ("Saft", "m", "", "juice"),
    ],
    "alcohol": [("Bier", "n", "", "beer"), ("Wein", "m", "", "wine")],
    "fodder": [("Gras", "n", "", "grass"), ("Heu", "n", "", "hay")],
    "cup": [
        ("Tasse Kaffee", "f", "Tassen Kaffee", "cup of coffee"),
        ("Tasse Tee", "f", "Tassen Tee", "cup of tea"),
        ("Glas Wasser", "n", "Gläser Wasser", "glass of water"),
        ("Glas Milch", "n", "Gläser Milch", "glass of milk"),
        ("Flasche Saft", "f", "Flaschen Saft", "bottle of juice"),
    ],
    "text": [
        ("Buch", "n", "Bücher", "book"), ("Zeitung", "f", "Zeitungen", "newspaper"),
        ("Zeitschrift", "f", "Zeitschriften", "magazine"), ("Roman", "m", "Romane", "novel"),
        ("Gedicht", "n", "Gedichte", "poem"), ("Geschichte", "f", "Geschichten", "story"),
        ("Artikel", "m", "Artikel", "article"),
    ],
    "mail": [
        ("Brief", "m", "Briefe", "letter"), ("Postkarte", "f", "Postkarten", "postcard"),
        ("E-Mail", "f", "E-Mails", "email"),
    ],
    "clothes": [
        ("Hemd", "n", "Hemden", "shirt"), ("Jacke", "f", "Jacken", "jacket"),
        ("Mantel", "m", "Mäntel", "coat"),
        ("Hut", "m", "Hüte", "hat"), ("Mütze", "f", "Mützen", "cap"), ("Pullover", "m", "Pullover", "jumper"),
        ("Schal", "m", "Schals", "scarf"),
    ],
    "dress": [
        ("Kleid", "n", "Kleider", "dress"), ("Rock", "m", "Röcke", "skirt"),
        ("Bluse", "f", "Blusen", "blouse"),
    ],
    "thing": [
        ("Tasche", "f", "Taschen", "bag"), ("Stift", "m", "Stifte", "pen"),
        ("Koffer", "m", "Koffer", "suitcase"),
        ("Rucksack", "m", "Rucksäcke", "backpack"), ("Regenschirm", "m", "Regenschirme", "umbrella"),
        ("Ball", "m", "Bälle", "ball"), ("Kissen", "n", "Kissen", "cushion"),
        ("Lampe", "f", "Lampen", "lamp"),
        ("Kerze", "f", "Kerzen", "candle"), ("Vase", "f", "Vasen", "vase"),
    ],
    "piece": [
        ("Schlüssel", "m", "Schlüssel", "key"), ("Ring", "m", "Ringe", "ring"),
        ("Bild", "n", "Bilder", "picture"),
        ("Geschenk", "n", "Geschenke", "present"), ("Spiegel", "m", "Spiegel", "mirror"),
    ],
    "dishes": [
        ("Messer", "n", "Messer", "knife"), ("Gabel", "f", "Gabeln", "fork"),
        ("Löffel", "m", "Löffel", "spoon"),
        ("Teller", "m", "Teller", "plate"), ("Glas", "n", "Gläser", "glass"), ("Tasse", "f", "Tassen", "cup"),
        ("Flasche", "f", "Flaschen", "bottle"),
    ],
    "device": [
        ("Handy", "n", "Handys", "phone"), ("Kamera", "f", "Kameras", "camera"),
        ("Computer", "m", "Computer", "computer"), ("Fernseher", "m", "Fernseher", "television"),
        ("Radio", "n", "Radios", "radio"), ("Wecker", "m", "Wecker", "alarm clock"),
    ],
    "furniture": [
        ("Tisch", "m", "Tische", "table"), ("Stuhl", "m", "Stühle", "chair"), ("Bett", "n", "Betten", "bed"),
        ("Sofa", "n", "Sofas", "sofa"), ("Schrank", "m", "Schränke", "cupboard"),
        ("Regal", "n", "Regale", "shelf"),
        ("Sessel", "m", "Sessel", "armchair"), ("Teppich", "m", "Teppiche", "carpet"),
    ],
    "vehicle": [
        ("Auto", "n", "Autos", "car"), ("Fahrrad", "n", "Fahrräder", "bicycle"),
        ("Motorrad", "n", "Motorräder", "motorbike"), ("Boot", "n", "Boote", "boat"),
    ],
    "transport": [
        ("Bus", "m", "Busse", "bus"), ("Zug", "m", "Züge", "train"), ("Taxi", "n", "Taxis", "taxi"),
        ("Straßenbahn", "f", "Straßenbahnen", "tram"),
    ],
    "building": [
        ("Haus", "n", "Häuser", "house"), ("Schule", "f", "Schulen", "school"),
        ("Kino", "n", "Kinos", "cinema"),
        ("Museum", "n", "Museen", "museum"), ("Hotel", "n", "Hotels", "hotel"),
        ("Restaurant", "n", "Restaurants", "restaurant"), ("Kirche", "f", "Kirchen", "church"),
        ("Bahnhof", "m", "Bahnhöfe", "station"), ("Krankenhaus", "n", "Krankenhäuser", "hospital"),
        ("Theater", "n", "Theater", "theatre"), ("Brücke", "f", "Brücken", "bridge"),
    ],
    "home": [("Wohnung", "f", "Wohnungen", "flat"), ("Zimmer", "n", "Zimmer", "room")],
    "room": [
        ("Küche", "f", "Küchen", "kitchen"), ("Wohnzimmer", "n", "Wohnzimmer", "living room"),
        ("Badezimmer", "n", "Badezimmer", "bathroom"), ("Keller", "m", "Keller", "cellar"),
    ],
    "area": [
        ("Stadt", "f", "Städte", "city"), ("Dorf", "n", "Dörfer", "village"),
        ("Garten", "m", "Gärten", "garden"),
        ("Park", "m", "Parks", "park"),
    ],
    "spot": [
        ("Tür", "f", "Türen", "door"), ("Fenster", "n", "Fenster", "window"),
        ("Baum", "m", "Bäume", "tree"), ("Schublade", "f", "Schubladen", "drawer"),
        ("Kiste", "f", "Kisten", "box"),
        ("Boden", "m", "Böden", "floor"), ("Blume", "f", "Blumen", "flower"),
        ("Rechnung", "f", "Rechnungen", "bill"),
        
    ],
    "topic": [
        ("Film", "m", "Filme", "film"), ("Lied", "n", "Lieder", "song"), ("Witz", "m", "Witze", "joke"),
        ("Spiel", "n", "Spiele", "game"), ("Reise", "f", "Reisen", "journey"),
        ("Konzert", "n", "Konzerte", "concert"),
    ],
    "matter": [
        ("Problem", "n", "Probleme", "problem"), ("Frage", "f", "Fragen", "question"),
        ("Aufgabe", "f", "Aufgaben", "task"), ("Prüfung", "f", "Prüfungen", "exam"),
    ],
}

PLURALS = {  # English plurals that no rule gives
    "man": "men", "woman": "women", "child": "children", "policeman": "policemen", "sheep": "sheep",
    "knife": "knives", "shelf": "shelves", "potato": "potatoes", "tomato": "tomatoes", "scarf": "scarves",
}

# Objects without an article: (German, English).
FIXED = {
    "sport": [("Fußball", "football"), ("Tennis", "tennis"), ("Schach", "chess"), ("Karten", "cards"),
              ("Klavier", "the piano"), ("Gitarre", "the guitar")],
    "language": [("Deutsch", "German"), ("Englisch", "English"), ("Französisch", "French"),
                 ("Spanisch", "Spanish"), ("Italienisch", "Italian")],
    "sound": [("Musik", "music"), ("Radio", "the radio")],
    "travel": [("dem Zug", "train"), ("dem Bus", "bus"), ("dem Auto", "car"), ("dem Fahrrad", "bicycle"),
               ("der Straßenbahn", "tram"), ("dem Taxi", "taxi")],
}

NAMES = {"er": "Peter Thomas Paul Felix Lukas Max".split(),
         "sie": "Anna Maria Julia Laura Lena Sophie".split()}

# Which articles suit a kind of noun: "own" is the subject's possessive, "some" the bare plural or mass
# noun, "die" the plural, "num" a number. A noun may be drawn with any of them, with equal chance.
ARTICLES = {
    "adult": "der der der ein dieser die", "contact": "der mein unser dein dieser die",
    "child": "der der die die dieser ein", "kin": "own own mein dein unser",
    "pet": "der own mein die dieser", "grazer": "der die dieser",
    "food": "ein ein der some some num dieser", "dish": "some some der", "drink": "some some der",
    "alcohol": "some some der", "fodder": "some der", "cup": "ein ein num",
    "text": "ein ein der der dieser num",
    "mail": "ein der dieser num", "clothes": "ein own own der dieser", "dress": "ein own own der dieser",
    "thing": "ein own own der mein dieser", "piece": "ein own own der mein dieser",
    "dishes": "der die ein num",
    "device": "ein own own der mein dieser", "furniture": "der der ein dieser",
    "vehicle": "ein own own der mein dieser",
    "transport": "der", "building": "der der dieser ein", "home": "own own der dieser", "room": "der der own",
    "area": "der der dieser", "spot": "der", "topic": "der der dieser ein", "matter": "der der dieser",
}
# What is used up or done with in one go cannot be the same one every day.
USED_UP = set("food dish drink alcohol fodder cup text mail".split())

# ------------------------------------------------------------------------------------------ adjectives
#
# (German, its stem when compared or "" for none, English, kinds of noun); "person" is every human being.
# A kind marked * is only said after "to be": one does not buy a broken radio.

ADJECTIVES = [
    ("alt", "ält", "old", "thing piece device clothes vehicle furniture building area home adult pet text"),
    ("neu", "neu", "new", "thing piece device clothes dress vehicle furniture dishes building home contact"),
    ("jung", "jüng", "young", "adult contact* pet"),
    ("groß", "größ", "big", "pet grazer thing furniture building home "
     "area vehicle food dishes room"),
    ("klein", "klein", "small",
     "pet grazer thing piece furniture building home area food dishes device room"),
    ("schön", "schön", "beautiful",
     "clothes dress thing piece building area home vehicle Film Lied Reise Konzert"),
    ("teuer", "teuer", "expensive", "clothes dress thing device vehicle furniture piece home* cup*"),
    ("billig", "billig", "cheap", "clothes dress thing device vehicle furniture"),
    ("modern", "modern", "modern", "building furniture device home"),
    ("berühmt", "berühmter", "famous", "adult text building"),
    ("rot", "", "red", "clothes dress thing vehicle"),
    ("blau", "", "blue", "clothes dress thing vehicle"), ("grün", "", "green", "clothes dress thing vehicle"),
    ("gelb", "", "yellow", "clothes dress thing"), ("schwarz", "", "black",
                                                    "clothes dress thing pet vehicle"),
    ("weiß", "", "white", "clothes dress thing pet grazer vehicle dishes"),
    ("braun", "", "brown", "clothes pet grazer furniture"), ("grau", "", "grey", "clothes dress pet"),
    ("schwer", "schwer", "heavy", "furniture thing*"), ("leicht", "leicht", "light", "thing* clothes*"),
    ("sauber", "sauber", "clean", "clothes* dress* dishes* vehicle* room* home*"),
    ("schmutzig", "schmutzig", "dirty", "clothes* dress* dishes* vehicle* room* home*"),
    ("kaputt", "", "broken", "device* furniture* vehicle*"),
    ("bequem", "bequem", "comfortable", "Stuhl* Bett* Sofa* Sessel* clothes*"),
    ("warm", "wärm", "warm", "clothes dress room*"), ("nass", "", "wet", "clothes* dress*"),
    ("frisch", "", "fresh", "Apfel Birne Orange Tomate Ei Brötchen Brot Fisch Fleisch Obst Salat Milch"),
    ("lecker", "lecker", "tasty", "food* dish* Kuchen Suppe Salat Brot Käse Schokolade"),
    ("süß", "süß", "sweet", "Apfel Birne Orange Kuchen Keks Schokolade"),
    ("heiß", "heiß", "hot", "Kaffee Tee Suppe"), ("kalt", "kält", "cold", "drink alcohol room*"),
    ("interessant", "interessant", "interesting", "text topic mail* area*"),
    ("langweilig", "langweilig", "boring", "text topic area*"),
    ("lang", "läng", "long", "text Brief E-Mail topic"),
    ("kurz", "kürz", "short", "text Brief E-Mail topic"), ("spannend", "spannend", "exciting", "text topic*"),
    ("lustig", "lustig", "funny", "text topic* mail person*"), ("traurig", "traurig", "sad", "text person*"),
    ("schwierig", "schwierig", "difficult", "matter"), ("wichtig", "wichtig", "important", "matter mail"),
    ("einfach", "einfach", "easy", "matter"), ("ruhig", "ruhig", "quiet", "area home building*"),
    ("gemütlich", "gemütlich", "cosy", "home room*"), ("nett", "nett", "nice", "adult contact child person*"),
    ("freundlich", "freundlich", "friendly", "adult contact child pet person*"),
    ("müde", "müd", "tired", "adult child person* pet*"), ("krank", "", "ill", "person* pet*"),
    ("hungrig", "hungrig", "hungry", "child person* pet"), ("durstig", "", "thirsty", "person* pet*"),
    ("glücklich", "glücklich", "happy", "child person*"),
    ("stark", "stärk", "strong", "person* grazer adult"),
    ("klug", "klüg", "clever", "adult child person* pet"), ("faul", "faul", "lazy", "child person* pet"),
    ("fleißig", "fleißig", "hard-working", "adult child contact person*"),
    ("reich", "reich", "rich", "adult person*"),
    ("arm", "ärm", "poor", "adult person*"), ("höflich", "höflich", "polite", "contact child person*"),
    ("nervös", "nervös", "nervous", "person*"), ("wütend", "wütend", "angry", "person*"),
    ("zufrieden", "zufrieden", "satisfied", "person*"), ("pünktlich", "pünktlich", "punctual", "person*"),
    ("stolz", "stolz", "proud", "person*"), ("gesund", "gesünd", "healthy", "person* pet*"),
]
COMPARED = {  # English comparatives and superlatives that no rule gives
    "big": ("bigger", "biggest"), "sad": ("sadder", "saddest"), "hot": ("hotter", "hottest"),
    "tired": ("more tired", "most tired"), "polite": ("more polite", "most polite"),
}

# ---------------------------------------------------------------------------------------------- verbs
#
# (infinitive, he/she/it form, Präteritum, Perfekt, English, kind, subjects, objects, places).
#
# English      "eat/ate/eaten"; one form alone is regular; more words follow the verb: "get/got/got up".
# kind         a: an activity (is reading); e: an event (not said of the present moment: found); s: a state
#              (knows). Then h: may be a habit; d, l, y or m: done within a day, or also over a long time, or
#              only so, or in the morning; c: at an hour ("um acht Uhr"); u: not what one wants.
# subjects     kinds of nouns, or nouns; "person" and "adult" include names and pronouns.
# objects      "case kinds", or "case:German preposition:English preposition kinds"; "=" and articles at the
#              end override ARTICLES. Several are separated by commas, in German order.
# places       a tag of PLACES; "to" or "at" before it makes a place obligatory: where to, or where.

VERBS = [
    ("schlafen", "schläft", "schlief", "hat geschlafen", "sleep/slept/slept", "ahd", "person pet", "",
     "sleep"),
    ("arbeiten", "arbeitet", "arbeitete", "hat gearbeitet", "work", "ahl", "adult", "", "work"),
    ("weinen", "weint", "weinte", "hat geweint", "cry", "adu", "person", "", ""),
    ("lachen", "lacht", "lachte", "hat gelacht", "laugh", "ad", "person",
     "acc:über:about Witz Film Geschichte", ""),
    ("tanzen", "tanzt", "tanzte", "hat getanzt", "dance", "ahd", "person", "", "dance"),
    ("singen", "singt", "sang", "hat gesungen", "sing/sang/sung", "ad", "person", "acc Lied =ein der dieser",
     "sing"),
    ("schwimmen", "schwimmt", "schwamm", "ist geschwommen", "swim/swam/swum", "ahd", "person", "", "swim"),
    ("wandern", "wandert", "wanderte", "ist gewandert", "hike", "ahl", "person", "", "hike"),
    ("spielen", "spielt", "spielte", "hat gespielt", "play", "ahd", "child", "", "play"),
    ("spielen", "spielt", "spielte", "hat gespielt", "play", "ahl", "person", "acc sport", ""),
    ("spielen", "spielt", "spielte", "hat gespielt", "play", "ahd", "child", "dat:mit:with pet Ball", "play"),
    ("lernen", "lernt", "lernte", "hat gelernt", "learn", "ahl", "person", "acc language", "learn"),
    ("hören", "hört", "hörte", "hat gehört", "listen", "ahd", "person", "acc::to sound", "screen"),
    ("kochen", "kocht", "kochte", "hat gekocht", "cook", "ahd", "person", "acc Suppe Reis Fisch Fleisch",
     "cook"),
    ("backen", "backt", "backte", "hat gebacken", "bake", "ahd", "person", "acc Kuchen Brot Keks Brötchen",
     "cook"),
    ("essen", "isst", "aß", "hat gegessen", "eat/ate/eaten", "ahd", "person", "acc food dish", "eat"),
    ("fressen", "frisst", "fraß", "hat gefressen", "eat/ate/eaten", "ad", "pet", "acc Fleisch Fisch", ""),
    ("fressen", "frisst", "fraß", "hat gefressen", "eat/ate/eaten", "ad", "grazer", "acc fodder", ""),
    ("trinken", "trinkt", "trank", "hat getrunken", "drink/drank/drunk", "ahd", "person", "acc drink cup",
     "eat"),
    ("trinken", "trinkt", "trank", "hat getrunken", "drink/drank/drunk", "ahd", "adult", "acc alcohol",
     "dine"),
    ("bestellen", "bestellt", "bestellte", "hat bestellt", "order", "ahd", "person",
     "acc cup alcohol dish Kuchen", "dine"),
    ("probieren", "probiert", "probierte", "hat probiert", "try/tried/tried", "ad", "person",
     "acc food dish =der dieser", ""),
    ("schneiden", "schneidet", "schnitt", "hat geschnitten", "cut/cut/cut", "ad", "person",
     "acc Brot Käse Fleisch Kuchen Tomate Apfel =der", ""),
    ("kaufen", "kauft", "kaufte", "hat gekauft", "buy/bought/bought", "ahd", "person", "acc food dish drink",
     "buy"),
    ("kaufen", "kauft", "kaufte", "hat gekauft", "buy/bought/bought", "ad", "person",
     "acc clothes dress thing device furniture text =ein der dieser", "shop"),
    ("kaufen", "kauft", "kaufte", "hat gekauft", "buy/bought/bought", "al", "adult",
     "acc vehicle Haus =ein der dieser", ""),
    ("verkaufen", "verkauft", "verkaufte", "hat verkauft", "sell/sold/sold", "al", "adult",
     "acc vehicle Haus Wohnung =own der", ""),
    ("bezahlen", "bezahlt", "bezahlte", "hat bezahlt", "pay/paid/paid", "ad", "adult", "acc Rechnung", ""),
    ("suchen", "sucht", "suchte", "hat gesucht", "look", "ad", "person",
     "acc::for thing piece device clothes kin pet", ""),
    ("finden", "findet", "fand", "hat gefunden", "find/found/found", "ed", "person",
     "acc thing piece pet =own der", ""),
    ("verlieren", "verliert", "verlor", "hat verloren", "lose/lost/lost", "edu", "person",
     "acc Schlüssel Ring Tasche Handy Regenschirm clothes =own der", ""),
    ("vergessen", "vergisst", "vergaß", "hat vergessen", "forget/forgot/forgotten", "edu", "person",
     "acc thing Schlüssel Geschenk clothes =own der", ""),
    ("bekommen", "bekommt", "bekam", "hat bekommen", "get/got/got", "edu", "person",
     "acc mail Geschenk =ein num", ""),
    ("verpassen", "verpasst", "verpasste", "hat verpasst", "miss", "edu", "person",
     "acc Bus Zug Straßenbahn =der", ""),
    ("gewinnen", "gewinnt", "gewann", "hat gewonnen", "win/won/won", "ed", "person", "acc Spiel =der dieser",
     ""),
    ("sehen", "sieht", "sah", "hat gesehen", "see/saw/seen", "ed", "person",
     "acc adult contact child kin pet grazer Film", ""),
    ("lesen", "liest", "las", "hat gelesen", "read/read/read", "ahd", "person", "acc text mail", "read"),
    ("schreiben", "schreibt", "schrieb", "hat geschrieben", "write/wrote/written", "ahd", "person",
     "acc mail Gedicht Geschichte", "read"),
    ("schreiben", "schreibt", "schrieb", "hat geschrieben", "write/wrote/written", "ahd", "person",
     "dat kin contact, acc mail =ein", ""),
    ("malen", "malt", "malte", "hat gemalt", "paint", "ahd", "person", "acc Bild Haus Baum Blume =ein",
     "read"),
    ("waschen", "wäscht", "wusch", "hat gewaschen", "wash", "ahd", "person",
     "acc Auto clothes dress =own der", ""),
    ("putzen", "putzt", "putzte", "hat geputzt", "clean", "ahd", "person", "acc Fenster room home =der", ""),
    ("auf|räumen", "räumt", "räumte", "hat aufgeräumt", "tidy", "ahd", "person",
     "acc room home Schublade Schrank =der own", ""),
    ("reparieren", "repariert", "reparierte", "hat repariert", "repair", "ad", "adult",
     "acc device vehicle Stuhl Tisch", ""),
    ("bauen", "baut", "baute", "hat gebaut", "build/built/built", "ay", "adult",
     "acc Haus Brücke Boot =ein der dieser", ""),
    ("öffnen", "öffnet", "öffnete", "hat geöffnet", "open", "ad", "person",
     "acc Tür Fenster Koffer Brief Flasche Geschenk =der", ""),
    ("schließen", "schließt", "schloss", "hat geschlossen", "close", "ad", "person",
     "acc Tür Fenster Koffer Schublade =der", ""),
    ("ein|schalten", "schaltet", "schaltete", "hat eingeschaltet", "switch on", "ad", "person",
     "acc device Lampe =der", ""),
    ("aus|schalten", "schaltet", "schaltete", "hat ausgeschaltet", "switch off", "ad", "person",
     "acc device Lampe =der", ""),
    ("tragen", "trägt", "trug", "hat getragen", "wear/wore/worn", "ad", "person",
     "acc clothes =ein own dieser", ""),
    ("an|ziehen", "zieht", "zog", "hat angezogen", "put/put/put on", "ad", "person",
     "acc Hemd Jacke Mantel Pullover =own own der", ""),
    ("besuchen", "besucht", "besuchte", "hat besucht", "visit", "ahl", "person", "acc kin contact", ""),
    ("besuchen", "besucht", "besuchte", "hat besucht", "visit", "al", "person",
     "acc Museum Kirche Theater =der dieser", ""),
    ("treffen", "trifft", "traf", "hat getroffen", "meet/met/met", "ahdc", "person", "acc kin contact",
     "meet"),
    ("an|rufen", "ruft", "rief", "hat angerufen", "call", "ahdc", "person", "acc kin contact", ""),
    ("ab|holen", "holt", "holte", "hat abgeholt", "pick up", "adc", "person",
     "acc kin Gast Kind =own der die", "wait"),
    ("ein|laden", "lädt", "lud", "hat eingeladen", "invite", "ad", "person", "acc kin contact", ""),
    ("fragen", "fragt", "fragte", "hat gefragt", "ask", "ad", "person", "acc kin contact Polizist", ""),
    ("füttern", "füttert", "fütterte", "hat gefüttert", "feed/fed/fed", "ahd", "person",
     "acc pet grazer =der die", ""),
    ("streicheln", "streichelt", "streichelte", "hat gestreichelt", "stroke", "ad", "person",
     "acc pet grazer =der die", ""),
    ("fotografieren", "fotografiert", "fotografierte", "hat fotografiert", "photograph", "ad", "person",
     "acc building pet grazer Baum Blume =der dieser", ""),
    ("nehmen", "nimmt", "nahm", "hat genommen", "take/took/taken", "ahd", "person", "acc transport =der", ""),
    ("mieten", "mietet", "mietete", "hat gemietet", "rent", "al", "adult",
     "acc Auto Wohnung Boot Zimmer =ein der", ""),
    ("mit|bringen", "bringt", "brachte", "hat mitgebracht", "bring/brought/brought", "ad", "person",
     "dat kin, acc Kuchen Geschenk Buch =ein", ""),
    ("auf|stehen", "steht", "stand", "ist aufgestanden", "get/got/got up", "ahmc", "person", "", ""),
    ("auf|wachen", "wacht", "wachte", "ist aufgewacht", "wake/woke/woken up", "ehmcu", "person", "", ""),
    ("frühstücken", "frühstückt", "frühstückte", "hat gefrühstückt", "have/had/had breakfast", "ahmc",
     "person", "", "eat"),
    ("ein|kaufen", "kauft", "kaufte", "hat eingekauft", "shop", "ahd", "person", "", "buy"),
    ("fern|sehen", "sieht", "sah", "hat ferngesehen", "watch television", "ahd", "person", "", "screen"),
    ("an|kommen", "kommt", "kam", "ist angekommen", "arrive", "edc", "person", "", "at arrive"),
    ("zurück|kommen", "kommt", "kam", "ist zurückgekommen", "come/came/come back", "edc", "person", "", ""),
    ("aus|gehen", "geht", "ging", "ist ausgegangen", "go/went/gone out", "ahd", "person", "", ""),
    ("ein|schlafen", "schläft", "schlief", "ist eingeschlafen", "fall/fell/fallen asleep", "edu",
     "person pet", "", "sleep"),
    ("spazieren |gehen", "geht", "ging", "ist spazieren gegangen", "go/went/gone for a walk", "ahd", "person",
     "", "walk"),
    ("helfen", "hilft", "half", "hat geholfen", "help", "ahd", "person", "dat kin contact adult", ""),
    ("danken", "dankt", "dankte", "hat gedankt", "thank", "ad", "person", "dat kin contact", ""),
    ("gratulieren", "gratuliert", "gratulierte", "hat gratuliert", "congratulate", "ad", "person",
     "dat kin contact", ""),
    ("antworten", "antwortet", "antwortete", "hat geantwortet", "answer", "ad", "person", "dat kin contact",
     ""),
    ("zu|hören", "hört", "hörte", "hat zugehört", "listen", "ad", "person", "dat::to kin contact Sängerin",
     ""),
    ("folgen", "folgt", "folgte", "ist gefolgt", "follow", "ad", "person pet",
     "dat Mann Frau child Polizist =der dieser", ""),
    ("warten", "wartet", "wartete", "hat gewartet", "wait", "ad", "person",
     "acc:auf:for kin contact transport", "wait"),
    ("denken", "denkt", "dachte", "hat gedacht", "think/thought/thought", "ahd", "person",
     "acc:an:about kin Prüfung Reise", ""),
    ("träumen", "träumt", "träumte", "hat geträumt", "dream", "ahdu", "person",
     "dat:von:of Reise vehicle Haus pet =ein", ""),
    ("sprechen", "spricht", "sprach", "hat gesprochen", "talk", "ahd", "person",
     "dat:mit:to kin contact child", ""),
    ("sprechen", "spricht", "sprach", "hat gesprochen", "talk", "ad", "person",
     "acc:über:about text Film matter Reise", ""),
    ("sich kümmern", "kümmert", "kümmerte", "hat gekümmert", "take/took/taken care", "ahd", "person",
     "acc:um:of pet kin Gast Garten =der own", ""),
    ("sich freuen", "freut", "freute", "hat gefreut", "look forward", "adu", "person",
     "acc:auf:to Film Konzert Reise Spiel =der", ""),
    ("sich aus|ruhen", "ruht", "ruhte", "hat ausgeruht", "rest", "ahd", "person", "", "sleep"),
    ("sich beeilen", "beeilt", "beeilte", "hat beeilt", "hurry", "ad", "person", "", ""),
    ("sich um|ziehen", "zieht", "zog", "hat umgezogen", "get/got/got changed", "ad", "person", "", ""),
    ("sich interessieren", "interessiert", "interessierte", "hat interessiert", "be/was/been interested",
     "sd", "person",
     "acc:für:in language Film text =der dieser", ""),
    ("sich erinnern", "erinnert", "erinnerte", "hat erinnert", "remember", "sd", "person",
     "acc:an: Film Reise Lied contact =der dieser", ""),
    ("gehen", "geht", "ging", "ist gegangen", "go/went/gone", "ahd", "person", "", "to go"),
    ("fahren", "fährt", "fuhr", "ist gefahren", "go/went/gone", "ahd", "person", "dat:mit:by travel",
     "to ride"),
    ("fahren", "fährt", "fuhr", "ist gefahren", "go/went/gone", "al", "person", "", "to travel"),
    ("fliegen", "fliegt", "flog", "ist geflogen", "fly/flew/flown", "al", "person", "", "to travel"),
    ("reisen", "reist", "reiste", "ist gereist", "travel/travelled/travelled", "ahl", "person", "",
     "to travel"),
    ("laufen", "läuft", "lief", "ist gelaufen", "run/ran/run", "ad", "person", "", "to ride"),
    ("bleiben", "bleibt", "blieb", "ist geblieben", "stay", "ahd", "person", "", "at stay"),
    ("wohnen", "wohnt", "wohnte", "hat gewohnt", "live", "sl", "person", "", "at live"),
    ("geben", "gibt", "gab", "hat gegeben", "give/gave/given", "ad", "person",
     "dat kin contact child, acc piece text thing dishes food =ein der", ""),
    ("schenken", "schenkt", "schenkte", "hat geschenkt", "give/gave/given", "ad", "person",
     "dat kin child, acc Buch Ring Bild Ball clothes Fahrrad Kamera =ein", ""),
    ("zeigen", "zeigt", "zeigte", "hat gezeigt", "show/showed/shown", "ad", "person",
     "dat kin contact child, acc piece mail home Fahrrad Kamera =der own", ""),
    ("zeigen", "zeigt", "zeigte", "hat gezeigt", "show/showed/shown", "ad", "person",
     "dat Gast Tourist kin, acc building area =der", ""),
    ("schicken", "schickt", "schickte", "hat geschickt", "send/sent/sent", "ahd", "person",
     "dat kin contact, acc mail Geschenk =ein", ""),
    ("bringen", "bringt", "brachte", "hat gebracht", "bring/brought/brought", "ad", "person",
     "dat kin contact adult, acc cup Suppe Rechnung", ""),
    ("leihen", "leiht", "lieh", "hat geliehen", "lend/lent/lent", "ad", "person",
     "dat kin contact, acc Buch vehicle Kamera Koffer Regenschirm =own", ""),
    ("erzählen", "erzählt", "erzählte", "hat erzählt", "tell/told/told", "ahd", "person",
     "dat kin child, acc Geschichte Witz =ein", ""),
    ("erklären", "erklärt", "erklärte", "hat erklärt", "explain", "ad", "person",
     "dat::to kin contact child, acc matter Spiel", ""),
    ("vor|lesen", "liest", "las", "hat vorgelesen", "read/read/read", "ahd", "person",
     "dat kin child, acc Buch Brief Geschichte Gedicht =ein der", ""),
    ("haben", "hat", "hatte", "hat gehabt", "have/had/had", "sd", "person",
     "acc pet vehicle device home matter =ein num", ""),
    ("brauchen", "braucht", "brauchte", "hat gebraucht", "need", "sd", "person",
     "acc clothes thing device vehicle furniture dishes =ein ein own", ""),
    ("mögen", "mag", "mochte", "hat gemocht", "like", "sd", "person",
     "acc food dish drink pet text =some some some der dieser", ""),
    ("lieben", "liebt", "liebte", "hat geliebt", "love", "sd", "person",
     "acc kin pet =own", ""),
    ("kennen", "kennt", "kannte", "hat gekannt", "know/knew/known", "sd", "person",
     "acc adult contact child building area text topic =der dieser", ""),
    ("verstehen", "versteht", "verstand", "hat verstanden", "understand/understood/understood", "sd",
     "person", "acc matter text Witz Film =der dieser", ""),
    ("sprechen", "spricht", "sprach", "hat gesprochen", "speak/spoke/spoken", "sl", "person", "acc language",
     ""),
    ("gehören", "gehört", "gehörte", "hat gehört", "belong", "sd", "thing piece device vehicle clothes dress",
     "dat::to kin contact adult", ""),
]

# --------------------------------------------------------------------------- places, times and manners

# Where, where to, and the same in English; the tags say what is done there.
PLACES = [
    ("zu Hause", "nach Hause", "at home", "home", "eat read work sleep cook stay go ride dance learn screen"),
    ("in der Schule", "in die Schule", "at school", "to school", "read learn go ride stay sing"),
    ("im Büro", "ins Büro", "at the office", "to the office", "work stay go ride meet"),
    ("auf dem Markt", "auf den Markt", "at the market", "to the market", "buy go ride meet"),
    ("im Supermarkt", "in den Supermarkt", "at the supermarket", "to the supermarket",
     "buy work go ride meet"),
    ("in der Bäckerei", "in die Bäckerei", "at the bakery", "to the bakery", "work go meet"),
    ("in der Stadt", "in die Stadt", "in town", "into town", "buy shop meet go ride live walk dine"),
    ("im Kino", "ins Kino", "at the cinema", "to the cinema", "go ride meet"),
    ("im Theater", "ins Theater", "at the theatre", "to the theatre", "go ride meet sing work"),
    ("im Museum", "ins Museum", "at the museum", "to the museum", "go ride meet work"),
    ("im Restaurant", "ins Restaurant", "at the restaurant", "to the restaurant", "dine work go ride meet"),
    ("im Café", "ins Café", "at the café", "to the café", "dine read work go ride meet wait"),
    ("im Hotel", "ins Hotel", "at the hotel", "to the hotel", "sleep work stay go ride meet wait screen"),
    ("im Park", "in den Park", "in the park", "to the park", "read play go ride meet walk dance eat"),
    ("im Garten", "in den Garten", "in the garden", "into the garden", "eat read play enter dance sing work"),
    ("in der Küche", "in die Küche", "in the kitchen", "into the kitchen", "eat cook enter"),
    ("im Wohnzimmer", "ins Wohnzimmer", "in the living room", "into the living room",
     "read play sleep dance enter screen"),
    ("im Bett", "ins Bett", "in bed", "to bed", "read sleep stay enter"),
    ("in der Bibliothek", "in die Bibliothek", "at the library", "to the library", "read work learn go ride"),
    ("an der Universität", "zur Universität", "at the university", "to the university",
     "work learn ride meet"),
    ("im Krankenhaus", "ins Krankenhaus", "at the hospital", "to the hospital", "work ride"),
    ("in der Kirche", "in die Kirche", "at church", "to church", "go ride sing"),
    ("am Bahnhof", "zum Bahnhof", "at the station", "to the station", "wait meet go ride arrive"),
    ("am Flughafen", "zum Flughafen", "at the airport", "to the airport", "wait meet ride arrive work"),
    ("an der Haltestelle", "zur Haltestelle", "at the bus stop", "to the bus stop", "wait meet go"),
    ("am Strand", "an den Strand", "on the beach", "to the beach", "read play sleep walk go ride dance"),
    ("am See", "an den See", "by the lake", "to the lake", "read play walk go ride hike"),
    ("im See", "", "in the lake", "", "swim"), ("im Meer", "", "in the sea", "", "swim"),
    ("im Schwimmbad", "ins Schwimmbad", "at the swimming pool", "to the swimming pool", "swim go ride meet"),
    ("im Wald", "in den Wald", "in the forest", "into the forest", "hike play walk go ride"),
    ("in den Bergen", "in die Berge", "in the mountains", "to the mountains", "hike live travel"),
    ("auf dem Land", "aufs Land", "in the country", "to the country", "live ride"),
    ("in Berlin", "nach Berlin", "in Berlin", "to Berlin", "live work travel arrive learn"),
    ("in Hamburg", "nach Hamburg", "in Hamburg", "to Hamburg", "live work travel arrive learn"),
    ("in München", "nach München", "in Munich", "to Munich", "live work travel arrive learn"),
    ("in Köln", "nach Köln", "in Cologne", "to Cologne", "live work travel arrive"),
    ("in Wien", "nach Wien", "in Vienna", "to Vienna", "live work travel arrive"),
    ("in London", "nach London", "in London", "to London", "live work travel arrive"),
    ("in Italien", "nach Italien", "in Italy", "to Italy", "live travel hike"),
    ("in Frankreich", "nach Frankreich", "in France", "to France", "live travel hike"),
    ("in Spanien", "nach Spanien", "in Spain", "to Spain", "live travel hike"),
    ("in der Schweiz", "in die Schweiz", "in Switzerland", "to Switzerland", "live work travel hike"),
]

NUMBERS = {
    "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six", "sieben": "seven",
    "acht": "eight",
    "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve", "zwanzig": "twenty",
    "dreißig": "thirty",
    "vierzig": "forty", "fünfzig": "fifty", "hundert": "a hundred", "zweihundert": "two hundred",
    "tausend": "a thousand",
}
COUNTS = list(NUMBERS)[:6]                              # so many apples or books at one time
HOURS = {"eins": "one"} | dict(list(NUMBERS.items())[:11])
DAYS = {
    "Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Donnerstag": "Thursday",
    "Freitag": "Friday", "Samstag": "Saturday", "Sonntag": "Sunday",
}

# (German, English, how long an event may be: d, l, m as in VERBS, and c if an hour may be added)
TIMES = {
    "past": [
        ("gestern", "yesterday", "dlmc"), ("gestern Abend", "yesterday evening", "d"),
        ("letzte Woche", "last week", "dl"),
        ("vorgestern", "the day before yesterday", "dl"), ("heute Morgen", "this morning", "dmc"),
        ("letzten Monat", "last month", "l"), ("letztes Jahr", "last year", "l"),
        ("letzten Sommer", "last summer", "l"),
        ("am Wochenende", "at the weekend", "dl"),
    ] + [(f"am {de}", f"on {en}", "dlmc") for de, en in DAYS.items()]
      + [(f"vor {de} Tagen", f"{NUMBERS[de]} days ago", "dl") for de in COUNTS[:3]]
      + [(f"vor {de} Jahren", f"{NUMBERS[de]} years ago", "l") for de in COUNTS],
    "future": [
        ("morgen", "tomorrow", "dlmc"), ("morgen früh", "tomorrow morning", "dmc"),
        ("morgen Abend", "tomorrow evening", "d"),
        ("übermorgen", "the day after tomorrow", "dl"), ("heute Abend", "this evening", "d"),
        ("bald", "soon", "dl"),
        ("nächste Woche", "next week", "dl"), ("nächsten Monat", "next month", "l"),
        ("nächstes Jahr", "next year", "l"),
        ("nächsten Sommer", "next summer", "l"), ("am Wochenende", "at the weekend", "dl"),
    ] + [(f"am {de}", f"on {en}", "dlmc") for de, en in DAYS.items()]
      + [(f"in {de} Stunden", f"in {NUMBERS[de]} hours", "d") for de in COUNTS[:3]]
      + [(f"in {de} Tagen", f"in {NUMBERS[de]} days", "l") for de in COUNTS],
    "now": [("gerade", "at the moment", "dlm"), ("jetzt", "now", "dlm"), ("heute", "today", "dl")],
    "habit": [
        ("jeden Tag", "every day", "dlmc"), ("jeden Morgen", "every morning", "dmc"),
        ("jeden Abend", "every evening", "d"),
        ("jede Woche", "every week", "dl"), ("jedes Wochenende", "every weekend", "dl"),
        ("im Sommer", "in summer", "dl"),
    ] + [(f"jeden {de}", f"every {en}", "dlmc") for de, en in DAYS.items()],
}
# Adverbs that stand before the English verb, and make a habit of what it says.
FREQUENCIES = [("oft", "often"), ("immer", "always"), ("manchmal", "sometimes"), ("nie", "never"),
               ("selten", "rarely"),
               ("meistens", "usually")]

MANNERS = [  # (German, English, the verbs it suits)
    ("langsam", "slowly", "essen trinken lesen arbeiten sprechen laufen"),
    ("laut", "loudly", "lachen singen sprechen weinen"),
    ("leise", "quietly", "singen sprechen spielen weinen"),
    ("allein", "alone", "arbeiten wohnen reisen spielen essen tanzen wandern"),
    ("vorsichtig", "carefully", "öffnen schließen schneiden waschen"),
    ("schnell", "quickly", "essen lernen laufen aufräumen reparieren schreiben schwimmen"),
    ("gut", "well", "schlafen tanzen kochen schwimmen singen"),
    ("schlecht", "badly", "schlafen tanzen singen kochen"),
]

# ------------------------------------------------------------------------------------ morphology: nouns

CASES = {"nom": 0, "acc": 1, "dat": 2, "gen": 3}
DEFINITE = {"m": "er en em es", "f": "ie ie er er", "n": "as as em es", "p": "ie ie en er"}   # d-er, d-en ...
ENDINGS = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}        # dies-er ...
INDEFINITE = ENDINGS | {"m": " en em es",
                        "n": "  em es"}                                     # ein-, ein-en ...
STRONG = ENDINGS | {"m": "er en em en", "n": "es es em en"}
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
MIXED = WEAK | {"m": "er en en en", "f": "e e en en", "n": "es es en en"}

# "ihr" is her or their: the key says which, the German does not.
POSSESSIVES = {"mein": "my", "dein": "your", "sein": "his", "ihr:her": "her", "unser": "our", "euer": "your",
               "ihr:their": "their"}
DETERMINERS = {"der": "the", "ein": "a", "dieser": "this", "welcher": "which", "kein": "a",
               "": ""} | POSSESSIVES | NUMBERS


class Noun(NamedTuple):
    word: str
    gender: str     # m, f, n, or p for a plural
    plural: str
    english: str
    group: str
    weak: bool      # n-declension


class Phrase(NamedTuple):
    """A noun phrase: its German cases, its English as a subject and as an object, and what refers to it."""

    cases: tuple[str, ...]
    english: str
    english_object: str
    person: int                 # 0 ich, 1 du, 2 er/sie/es, 3 wir, 4 ihr, 5 sie
    pronoun: str = ""           # the key in PRONOUNS of the word that can stand for it, if that is clear
    noun: Noun | None = None
    determiner: str = ""
    plural: bool = False
    adjective: str = ""
    light: bool = False         # a pronoun: it comes first after the verb


# nominative, accusative, dative, English subject, English object, person, reflexive
PRONOUNS = {
    "ich": ("ich", "mich", "mir", "I", "me", 0), "du": ("du", "dich", "dir", "you", "you", 1),
    "er": ("er", "ihn", "ihm", "he", "him", 2), "sie": ("sie", "", "ihr", "she", "her", 2),
    "wir": ("wir", "uns", "uns", "we", "us", 3), "ihr": ("ihr", "euch", "euch", "you", "you", 4),
    "sie (pl)": ("sie", "", "ihnen", "they", "them", 5),
}
OWN = {"ich": "mein", "du": "dein", "er": "sein", "sie": "ihr:her", "wir": "unser", "ihr": "euer",
       "sie (pl)": "ihr:their"}
REFLEXIVE = ["mich", "dich", "sich", "uns", "euch", "sich"]


def pronoun(key: str) -> Phrase:
    """The personal pronoun `key` of PRONOUNS."""
    nominative, accusative, dative, subject, object_, person = PRONOUNS[key]
    return Phrase((nominative, accusative, dative, ""), subject, object_, person, key, light=True)


def plural_en(word: str) -> str:
    """The plural of an English noun: cities, boxes, cups of tea."""
    head, of, rest = word.partition(" of ")
    if head in PLURALS:
        plural = PLURALS[head]
    elif head[-1] == "y" and head[-2] not in "aeiou":
        plural = head[:-1] + "ies"
    else:
        plural = head + ("es" if head.endswith(("s", "x", "ch", "sh")) else "s")
    return plural + of + rest


def with_article(words: str) -> str:
    """English `a` or `an` before the words, by their sound."""
    return ("an " if words[0] in "aeiou" and not words.startswith("uni") else "a ") + words


def decline_noun(noun: Noun, case: int, plural: bool) -> str:
    """One form of a noun: des Hundes, den Hunden, den Jungen."""
    if plural or noun.gender == "p":
        word = noun.plural
        return word if case != 2 or word[-1] in "ns" or " " in word else word + "n"
    if noun.weak and case:
        return noun.plural
    if case == 3 and noun.gender in "mn":
        if noun.plural.endswith("s"):
            return noun.word + "s"
        short = sum(letter.lower() in "aeiouäöü" for letter in noun.word) == 1
        return noun.word + ("es" if short or noun.word.endswith(("s", "ß", "z", "sch")) else "s")
    return noun.word


def decline_adjective(adjective: str, ending: str) -> str:
    """An adjective before its noun: die alte, der teure, die müde."""
    stem = "teur" if adjective == "teuer" else adjective.removesuffix("e")
    return stem + ending


@lru_cache(None)
def phrase(noun: Noun, determiner: str = "der", plural: bool = False, adjective: str = "",
           english: str = "") -> Phrase:
    """Article, adjective and noun: (Hund, "ein", False, "alt", "old") is "ein alter Hund", "an old dog"."""
    plural = plural or noun.gender == "p"
    gender = "p" if plural else noun.gender
    stem = determiner.partition(":")[0]
    if stem == "der":
        articles, endings = ["d" + ending for ending in DEFINITE[gender].split()], WEAK
    elif stem in ("dieser", "welcher"):
        articles, endings = [stem[:-2] + ending for ending in ENDINGS[gender].split()], WEAK
    elif stem == "" or determiner in NUMBERS:
        articles, endings = [stem] * 4, STRONG
    else:
        stems = ["eur" if stem == "euer" and ending else stem for ending in INDEFINITE[gender].split(" ")]
        articles, endings = [a + b for a, b in zip(stems, INDEFINITE[gender].split(" "))], MIXED
    adjectives = [decline_adjective(adjective, ending) if adjective else ""
                  for ending in endings[gender].split()]
    cases = tuple(" ".join(filter(None, (articles[case], adjectives[case], decline_noun(noun, case, plural))))
                  for case in range(4))

    mass = not noun.plural
    word = noun.english if not plural or noun.gender == "p" else plural_en(noun.english)
    word = f"{english} {word}".strip()
    if determiner in ("ein", "kein") and not plural and not mass:
        word = with_article(word)
    elif determiner == "kein":
        word = "any " + word
    else:
        article = {"dieser": "these"}.get(determiner, "") if plural else ""
        word = f"{article or DETERMINERS[determiner]} {word}".strip()
    human = noun.group in ("adult", "contact", "child", "kin")
    refers = ("sie (pl)" if plural else {"m": "er", "f": "sie"}.get(noun.gender, "")) if human else ""
    return Phrase(cases, word, word, 5 if plural else 2, refers, noun, determiner, plural, adjective)


# ------------------------------------------------------------------------------------ morphology: verbs

PRESENT = {  # verbs whose present follows no rule
    "sein": "bin bist ist sind seid sind", "haben": "habe hast hat haben habt haben",
    "werden": "werde wirst wird werden werdet werden", "können": "kann kannst kann können könnt können",
    "müssen": "muss musst muss müssen müsst müssen", "wollen": "will willst will wollen wollt wollen",
    "dürfen": "darf darfst darf dürfen dürft dürfen", "sollen": "soll sollst soll sollen sollt sollen",
    "möchten": "möchte möchtest möchte möchten möchtet möchten", "mögen": "mag magst mag mögen mögt mögen",
    "wissen": "weiß weißt weiß wissen wisst wissen",
}
PRESENT = {verb: forms.split() for verb, forms in PRESENT.items()}
ING = {"lie": "lying", "run": "running", "swim": "swimming", "win": "winning", "get": "getting",
       "sit": "sitting",
       "put": "putting", "cut": "cutting", "shop": "shopping", "forget": "forgetting", "travel": "travelling",
       "plan": "planning", "be": "being", "see": "seeing"}
DOUBLED = {"shop": "shopped"}


class English(NamedTuple):
    """An English verb: look, looked, looked, and what follows it (up, for, breakfast)."""

    base: str
    past: str
    participle: str
    tail: str = ""

    @property
    def infinitive(self) -> str:
        return f"{self.base} {self.tail}".strip()


class Verb(NamedTuple):
    infinitive: str
    prefix: str         # auf- of aufstehen
    base: str           # stehen
    third: str
    past: str
    auxiliary: str
    participle: str
    reflexive: bool
    english: English
    kind: str
    subjects: tuple = ()
    objects: tuple = ()  # of (case, German preposition, English preposition, nouns, articles)
    need: str = ""       # "to" or "at" where a place is obligatory
    places: tuple = ()


def read_english(text: str) -> English:
    """`get/got/got up` or `look for` -> English."""
    forms, _, tail = text.partition(" ")
    if "/" in forms:
        return English(*forms.split("/"), tail)
    past = DOUBLED.get(forms) or (forms[:-1] + "ied" if forms[-1] == "y" and forms[-2] not in "aeo"
                                  else forms + ("d" if forms[-1] == "e" else "ed"))
    return English(forms, past, past, tail)


@lru_cache(None)
def present(base: str, third: str) -> list[str]:
    """The six forms of the present, from the infinitive and the third person."""
    if base in PRESENT:
        return PRESENT[base]
    stem = base.removesuffix("n").removesuffix("e")
    first = base.removesuffix("eln") + "le" if base.endswith("eln") else stem + "e"
    second = third if third[-2] in "sßzx" else third[:-1] + "st"
    hard = stem[-1] in "td" or (stem[-1] in "mn" and stem[-2] not in "aeiouäöürlhmn")
    return [first, second, third, base, stem + ("et" if hard else "t"), base]


@lru_cache(None)
def preterite(past: str) -> list[str]:
    """The six forms of the Präteritum, from the first."""
    many = past + ("n" if past.endswith("e") else "en")
    return [past, past + "st", past, many, past + "t", many]


def third_en(base: str) -> str:
    """goes, watches, cries, plays."""
    if base in ("have", "be"):
        return {"have": "has", "be": "is"}[base]
    if base[-1] == "y" and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "o")) else "s")


def ing(base: str) -> str:
    """reading, writing, running."""
    return ING.get(base) or (base[:-1] if base[-1] == "e" else base) + "ing"


def to_be(person: int, past: bool) -> str:
    """am, is, are, was or were."""
    if past:
        return "was" if person in (0, 2) else "were"
    return {0: "am", 2: "is"}.get(person, "are")


def german_verb(verb: Verb, person: int, tense: str, modal: str = "") -> tuple[str, str, str]:
    """(finite verb, what stands at the end of a main clause, the two as the end of a subordinate clause)."""
    infinitive = verb.prefix + verb.base
    if modal:
        finite = (preterite(MODAL_PAST[modal]) if tense == "past" else PRESENT[modal])[person]
        return finite, infinitive, f"{infinitive} {finite}"
    if tense in ("present", "past"):
        finite = (present(verb.base, verb.third) if tense == "present" else preterite(verb.past))[person]
        return finite, verb.prefix.strip(), verb.prefix + finite
    if tense == "future":
        finite, last = PRESENT["werden"][person], infinitive
    elif tense == "perfect":
        finite, last = PRESENT[verb.auxiliary][person], verb.participle
    else:
        finite, last = preterite("hatte" if verb.auxiliary == "haben" else "war")[person], verb.participle
    return finite, last, f"{last} {finite}"


def zu_infinitive(verb: Verb) -> str:
    """zu lesen, aufzustehen, spazieren zu gehen."""
    if not verb.prefix:
        return "zu " + verb.base
    return f"{verb.prefix}zu {verb.base}" if verb.prefix.endswith(" ") else f"{verb.prefix}zu{verb.base}"


MODAL_PAST = {"können": "konnte", "müssen": "musste", "wollen": "wollte", "dürfen": "durfte"}
HELPERS = {"können": "can", "sollen": "should", "möchten": "would"}       # konnte is "was able to"
HAVE_TO = {"müssen": ("have", "had", "to"), "wollen": ("want", "wanted", "to"),
           "dürfen": ("be", "was", "allowed to"),
           "können": ("be", "was", "able to")}


def english_verb(verb: English, person: int, form: str, modal: str = "",
                 bare: bool = False) -> tuple[str, str]:
    """(auxiliary or "", the rest): ("", "reads"), ("is", "reading"), ("will", "read"); `bare`, as a question
    or a negation wants it, always has an auxiliary: ("does", "read"). `form` is one of simple, progressive,
    past, past progressive, past perfect, perfect, perfect progressive, will."""
    base, past, participle, tail = verb
    if modal in HELPERS and (form != "past" or modal != "können"):
        return HELPERS[modal], ("like to " if modal == "möchten" else "") + verb.infinitive
    if modal:
        base, past, tail = HAVE_TO[modal]
        tail += " " + verb.infinitive
    many = person not in (2,)
    if form == "will":
        words = "will", base
    elif form.endswith("perfect progressive"):
        words = ("have" if many else "has"), "been " + ing(base)
    elif form == "perfect":
        words = ("have" if many else "has"), participle
    elif form == "past perfect":
        words = "had", participle
    elif form.endswith("progressive"):
        words = to_be(person, form.startswith("past")), ing(base)
    elif base == "be":
        words = to_be(person, form == "past"), ""
    elif bare:
        words = ("did" if form == "past" else "do" if many else "does"), base
    else:
        words = "", past if form == "past" else base if many else third_en(base)
    return words[0], f"{words[1]} {tail}".strip()


def contract(text: str) -> str:
    """in dem -> im, zu der -> zur: a preposition with its article, at the start of `text`."""
    for full, short in (("in dem ", "im "), ("in das ", "ins "), ("an dem ", "am "), ("an das ", "ans "),
                        ("von dem ", "vom "), ("zu dem ", "zum "), ("zu der ", "zur ")):
        if text.startswith(full):
            return short + text.removeprefix(full)
    return text


# ---------------------------------------------------------------------------------------------- lexicon

Pair = tuple[str, str]

WORDS = {row[0]: Noun(row[0], row[1][0], row[2], row[3], group, row[1] == "mn")
         for group, rows in NOUNS.items() for row in rows}
GROUPS = {group: [WORDS[row[0]] for row in rows] for group, rows in NOUNS.items()}


def nouns(kinds: str) -> tuple:
    """The nouns of a list of kinds and single words, or ready phrases for the kinds of FIXED."""
    found = []
    for kind in kinds.split():
        if kind in FIXED:
            found += [Phrase((de,) * 4, en, en, 2) for de, en in FIXED[kind]]
        else:
            found += GROUPS.get(kind) or [WORDS[kind]]
    return tuple(found)


def read_objects(text: str) -> tuple:
    """`acc:auf:for kin =der own` -> (case, German preposition, English preposition, nouns, articles)."""
    objects = []
    for part in filter(None, text.split(", ")):
        part, _, articles = part.partition(" =")
        head, _, kinds = part.partition(" ")
        case, german, english = (head.split(":") + ["", ""])[:3]
        objects.append((CASES[case], german, english, nouns(kinds), tuple(articles.split())))
    return tuple(objects)


def read_verb(infinitive, third="", past="", perfect="", english="", kind="", subjects="", objects="",
              places="") -> Verb:
    """A row of VERBS -> Verb."""
    reflexive, infinitive = infinitive.startswith("sich "), infinitive.removeprefix("sich ")
    prefix, _, base = infinitive.rpartition("|")
    auxiliary, _, participle = perfect.partition(" ")
    need, _, tag = places.rpartition(" ")
    where = tuple(place for place in PLACES if tag and tag in place[4].split())
    return Verb(prefix + base, prefix, base, third, past, {"hat": "haben", "ist": "sein", "": ""}[auxiliary],
                participle,
                reflexive, read_english(english), kind, tuple(subjects.split()), read_objects(objects), need,
                where)


FRAMES = [read_verb(*row) for row in VERBS]
BY_NAME: dict[str, list[Verb]] = {}
for frame in FRAMES:
    BY_NAME.setdefault(frame.infinitive, []).append(frame)
SEIN = read_verb("sein", "ist", "war", "ist gewesen", "be/was/been", "s")
POSITION = {name: read_verb(name, *rest) for name, rest in {
    "liegen": ("liegt", "lag", "hat gelegen", "lie/lay/lain", "a"),
    "stehen": ("steht", "stand", "hat gestanden", "stand/stood/stood", "a"),
    "sitzen": ("sitzt", "saß", "hat gesessen", "sit/sat/sat", "a"),
    "legen": ("legt", "legte", "hat gelegt", "put/put/put", "a"),
    "stellen": ("stellt", "stellte", "hat gestellt", "put/put/put", "a"),
    "springen": ("springt", "sprang", "ist gesprungen", "jump", "a"),
    "laufen": ("läuft", "lief", "ist gelaufen", "run/ran/run", "a"),
}.items()}

# Which adjectives go before a noun, and which can be said of it after "to be": lists of (German, English).
ATTRIBUTES: dict[str, list[Pair]] = {word: [] for word in WORDS}
PREDICATES: dict[str, list[tuple]] = {word: [] for word in WORDS} | {"person": [], "adult": []}
PEOPLE = ("adult", "contact", "child", "kin")
for row in ADJECTIVES:
    for kind in row[3].split():
        name, after_be = kind.rstrip("*"), kind.endswith("*")
        if name in ("person", "adult"):
            PREDICATES[name].append(row)
        for noun in (word for group in (PEOPLE if name == "person" else [name]) for word in
                     (GROUPS.get(group) or [WORDS[group]])):
            PREDICATES[noun.word] += [row] if row not in PREDICATES[noun.word] else []
            if not after_be:
                ATTRIBUTES[noun.word].append((row[0], row[2]))

# ---------------------------------------------------------------------------------------------- clauses

GAP = Phrase(("",) * 4, "", "", 2)      # what a question word or a relative pronoun has taken away
INDEFINITES = {"ein", "kein", "", "fixed"} | set(NUMBERS)


class Object(NamedTuple):
    case: int
    german: str         # prepositions
    english: str
    phrase: Phrase


class Clause(NamedTuple):
    """What is said, without an order of words: german() and english() give it one."""

    subject: Phrase
    verb: Verb
    tense: str = "present"          # present, past, perfect, pluperfect, future
    form: str = "simple"            # the form of the English verb, see english_verb
    modal: str = ""
    objects: tuple[Object, ...] = ()
    place: Pair = ("", "")
    directed: bool = False          # the place says where to, or belongs to the verb as closely
    time: Pair = ("", "")
    frequency: Pair = ("", "")
    manner: Pair = ("", "")
    predicate: Pair = ("", "")
    negated: bool = False
    likes: bool = False             # gern

    def middle(self) -> list[str]:
        """The German words between the finite verb (or the conjunction) and the end of the clause."""
        none = any(o.phrase.determiner == "kein" for o in self.objects)
        light, datives, definite, indefinite, prepositional = [], [], [], [], []
        for o in self.objects:
            if o.phrase is GAP:
                continue
            text = contract(f"{o.german} {o.phrase.cases[o.case]}".strip())
            if o.german:
                prepositional.append(text)
            elif o.phrase.light:
                light.append(text)
            elif o.case == CASES["dat"]:
                datives.append(text)
            else:
                (indefinite if o.phrase.determiner in INDEFINITES else definite).append(text)
        place = [self.place[0]]
        early, late = (place, []) if indefinite and not self.directed else ([], place)
        if self.place[0] and prepositional and not self.directed:
            early, late = place, []
        return [*light, self.time[0], self.frequency[0], "gern" if self.likes else "", *datives, *definite,
                "nicht" if self.negated and not none else "", self.manner[0], *early, *indefinite,
                *prepositional,
                *late, self.predicate[0]]

    def german(self, order: str = "second", front: str = "") -> str:
        """The clause in German. `order` says where the finite verb stands: second (Er liest.), first (Liest
        er?), last (weil er liest), or zu (ohne zu lesen: no subject). `front` goes before it in its place."""
        finite, end, cluster = german_verb(self.verb, self.subject.person, self.tense, self.modal)
        subject = self.subject.cases[0]
        reflexive = REFLEXIVE[self.subject.person] if self.verb.reflexive else ""
        # "sich" follows a pronoun, but comes before a noun: wäscht er sich, wäscht sich der Mann
        both = join(subject, reflexive) if self.subject.light else join(reflexive, subject)
        if order == "last":
            return join(both, *self.middle(), cluster)
        if order == "zu":
            return join(reflexive, *self.middle(), zu_infinitive(self.verb))
        if order == "first" or front:
            return join(front, finite, both, *self.middle(), end)
        return join(subject, finite, reflexive, *self.middle(), end)

    def english(self, order: str = "statement") -> str:
        """The clause in English. `order`: statement, question (does he read), or infinitive (read)."""
        verb = self.verb.english
        if self.likes:
            verb = English("like", "liked", "liked", "to " + verb.infinitive)
        plain = [o.phrase.english_object for o in self.objects if not o.english]
        others = [join(o.english, o.phrase.english_object) for o in self.objects if o.english]
        place = self.place[1]
        first, last = (place, "") if self.directed else ("", place)
        rest = join(self.predicate[1], *plain, first, *others, self.manner[1], last, self.time[1])
        if order == "infinitive":
            return join(verb.infinitive, rest)
        auxiliary, words = english_verb(verb, self.subject.person, self.form, self.modal,
                                        bare=self.negated or order == "question")
        never = "not" if self.negated else ""
        if order == "question":
            return join(auxiliary, self.subject.english, never, self.frequency[1], words, rest)
        start = "cannot" if (auxiliary, never) == ("can", "not") else join(auxiliary, never)
        return join(self.subject.english, start, self.frequency[1], words, rest)


def join(*words: str) -> str:
    """The words that are not empty, with spaces between them."""
    return " ".join(filter(None, words))


def finish(german: str, english: str, mark: str = ".") -> Pair:
    """Two sentences, with a capital and an end mark each."""
    return german[0].upper() + german[1:] + mark, english[0].upper() + english[1:] + mark


def pick(rng: random.Random, choices):
    """One of the choices (as rng.choice, in half the time)."""
    return choices[int(rng.random() * len(choices))]


def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def name(rng: random.Random) -> Phrase:
    """A first name."""
    key = pick(rng, ("er", "sie"))
    word = pick(rng, NAMES[key])
    return Phrase((word,) * 4, word, word, 2, key, determiner="name")


def noun_phrase(rng: random.Random, noun: Noun, articles="", owner: Phrase | None = None,
                adjective: float = 0.3,
                habit: bool = False) -> Phrase:
    """The noun with an article that suits it and perhaps an adjective; `owner` is who its "own" is."""
    tokens = articles or ARTICLES_OF[noun.group]
    if habit and noun.group in USED_UP:
        tokens = [token for token in tokens if token in ("ein", "some")] or (["some"] if not noun.plural
                                                                             else ["ein"])
    token = pick(rng, tokens)
    if noun.group == "kin" and token in ("der", "die", "dieser", "ein"):
        token = "own"                                   # one has a father; "the father" needs a story
    if noun.group == "dress" and token == "own" and not (owner and owner.pronoun == "sie"):
        token = "der"                                   # not his skirt
    determiner, many = token, False
    if token == "own":
        determiner = (OWN.get(owner.pronoun, "") if owner else "") or ("der" if noun.group != "kin"
                                                                       else "mein")
        many = bool(owner) and owner.person > 2 and noun.group in PERSONAL
    elif token == "die":
        determiner, many = "der", True
    elif token == "some":
        determiner, many = "", bool(noun.plural)
    elif token == "num":
        determiner, many = pick(rng, COUNTS), True
    if not noun.plural and determiner == "ein":
        determiner = ""
    attributes = ATTRIBUTES[noun.word]
    if attributes and chance(rng, adjective):
        return phrase(noun, determiner, many, *pick(rng, attributes))
    return phrase(noun, determiner, many)


# Of these each has one's own: they wash their coats, not their coat.
PERSONAL = {"clothes", "dress", "thing", "piece", "device"}
ARTICLES_OF = {group: tuple(articles.split()) for group, articles in ARTICLES.items()}
FOLK = {"adult": GROUPS["adult"] + GROUPS["contact"], "person": GROUPS["adult"] + GROUPS["contact"]
        + GROUPS["child"]}


def someone(rng: random.Random, who: str = "person", pronouns: float = 0.3) -> Phrase:
    """A person as a subject: I, Anna, my brother and I, the old man. `who` is person or adult."""
    chosen = rng.random()
    if chosen < pronouns:
        return pronoun(pick(rng, list(PRONOUNS)))
    if chosen < pronouns + 0.12:
        return name(rng)
    if chosen < pronouns + 0.16:
        first, second = name(rng), name(rng)
        while second == first:
            second = name(rng)
        words = f"{first.english} und {second.english}"
        both = f"{first.english} and {second.english}"
        return Phrase((words,) * 4, both, both, 5, "sie (pl)", determiner="name")
    kin = chosen < pronouns + 0.36
    one = noun_phrase(rng, pick(rng, GROUPS["kin"] if kin else FOLK[who]), adjective=0.25)
    if chosen < pronouns + 0.19 and one.determiner == "mein":
        return Phrase((one.cases[0] + " und ich",) * 4, one.english + " and I", "", 3, "wir")
    return one


def subject_of(rng: random.Random, verb: Verb) -> Phrase:
    """Someone or something that can do what the verb says."""
    mixed = "person" in verb.subjects and len(verb.subjects) > 1       # mostly people: there are more of them
    kind = "person" if mixed and chance(rng, 0.8) else pick(rng, verb.subjects)
    if kind in FOLK:
        return someone(rng, kind)
    if kind == "child" and chance(rng, 0.25):
        return pronoun(pick(rng, list(PRONOUNS)))
    return noun_phrase(rng, pick(rng, nouns(kind)))


# Whom a pronoun may stand for: "I help us" is not said.
APART = [("du", "er", "sie", "ihr", "sie (pl)"), ("ich", "er", "sie", "wir", "sie (pl)"), tuple(PRONOUNS)]
APART += [APART[0], APART[1], tuple(PRONOUNS)]


def object_of(rng: random.Random, rule: tuple, subject: Phrase, habit: bool, used: list) -> Object:
    """Something that the verb can be done to; `rule` is one of Verb.objects."""
    case, german, english, choices, articles = rule
    choice = pick(rng, choices)
    if isinstance(choice, Phrase):
        return Object(case, german, english, choice._replace(determiner="fixed"))
    while choice in used:
        choice = pick(rng, choices)
    if choice.group in PEOPLE and not articles and chance(rng, 0.3):
        them = pronoun(pick(rng, APART[subject.person])) if chance(rng, 0.75) else name(rng)
        if them.cases[case] and them.english != subject.english:        # not "sie": her or them?
            return Object(case, german, english, them)
    return Object(case, german, english, noun_phrase(rng, choice, articles, subject, habit=habit))


# ------------------------------------------------------------------------------ from a verb to a clause

WHEN = ["now"] * 4 + ["past"] * 5 + ["future"] * 3 + ["habit"] * 2 + ["modal"] * 4 + ["likes"]


def suits(verb: Verb, when: str) -> bool:
    """Whether the verb can be said of that time."""
    kind = verb.kind
    if when == "now":
        return kind[0] in "as"
    if when == "habit":
        return "h" in kind
    if when == "likes":
        return "h" in kind and kind[0] == "a" and "u" not in kind
    if when in ("modal", "intended"):
        return kind[0] != "s" and "u" not in kind
    if when == "future":
        return kind[0] != "s" and "u" not in kind
    if when == "activity":
        return kind[0] == "a" and verb.infinitive not in ("aufstehen",)
    return True


FRAMES_FOR = {when: [verb for verb in FRAMES if suits(verb, when)] for when in
              ("now", "habit", "past", "future", "modal", "likes", "intended", "activity")}


def clock(rng: random.Random, morning: bool) -> Pair:
    """An hour: um halb neun, at half past eight."""
    number = 5 + int(rng.random() * 4) if morning else int(rng.random() * 12)
    hours = list(HOURS.items())
    german, english = hours[number]
    style = int(rng.random() * 6)
    if style == 0:
        return "um halb " + hours[(number + 1) % 12][0], "at half past " + english
    if style == 1:
        return "um Viertel nach " + german, "at a quarter past " + english
    if style == 2:
        return "um Viertel vor " + german, "at a quarter to " + english
    return f"um {german.removesuffix('s') if number == 0 else german} Uhr", f"at {english} o'clock"


def time_of(rng: random.Random, verb: Verb, when: str) -> Pair:
    """A time at which the verb can happen."""
    kind = next(letter for letter in "ylmd" if letter in verb.kind)
    german, english, scale = pick(rng, TIMES_OF[when, kind])
    if "c" in scale and (kind == "m" or "c" in verb.kind and chance(rng, 0.5)):
        de, en = clock(rng, kind == "m" or "Morgen" in german or "früh" in german)
        return f"{german} {de}", f"{english} {en}"
    return german, english


TIMES_OF = {(when, kind): [row for row in rows if kind in row[2]] for when, rows in TIMES.items()
            for kind in "dlm"}
TIMES_OF |= {(when, "y"): [row for row in rows if row[2] == "l" or when == "now"] for when,
             rows in TIMES.items()}
MANNERS_OF = {name: [row[:2] for row in MANNERS if name in row[2].split()] for name in BY_NAME}


def make(rng: random.Random, when: str = "", verbs=None, subject: Phrase | None = None, timed: float = 0.6,
         placed: float = 0.35, negated: float = 0.12, nouns_used=()) -> Clause:
    """A clause with one of the verbs, about `when`: now, past, future, habit, modal or likes."""
    when = when or pick(rng, WHEN)
    if verbs is None:
        verb = pick(rng, FRAMES_FOR[when])
    else:
        verb = pick(rng, verbs)
        when = when if suits(verb, when) else "past"
    subject = subject or subject_of(rng, verb)
    habit = when in ("habit", "likes")
    used = [subject.noun, *nouns_used]
    objects = []
    for rule in verb.objects:
        objects.append(object_of(rng, rule, subject, habit, used))
        used.append(objects[-1].phrase.noun)

    state = verb.kind[0] == "s"
    tense, form, modal, time, frequency = "present", "simple", "", ("", ""), ("", "")
    timed_now = not state and chance(rng, timed)
    if when == "now" or when == "activity":
        form = "simple" if state else "progressive"
        time = time_of(rng, verb, "now") if timed_now else time
    elif when == "habit":
        if chance(rng, 0.5):
            time = time_of(rng, verb, "habit")
        else:
            frequency = pick(rng, FREQUENCIES)
    elif when == "past":
        tense, form = past_tense(rng, subject, state), "past"
        time = time_of(rng, verb, "past") if timed_now else time
    elif when == "future":
        tense, form = pick(rng, ("present", "future")), "will"
        time = time_of(rng, verb, "future") if timed_now or tense == "present" else time
    elif when == "modal":
        past = chance(rng, 0.3)
        modal = pick(rng, list(MODAL_PAST) if past else [*MODAL_PAST, "sollen", "möchten"])
        tense, form = ("past", "past") if past else ("present", "simple")
        time = time_of(rng, verb, "past" if past else "future") if timed_now and chance(rng, 0.7) else time

    place, directed = ("", ""), bool(verb.need)
    if verb.need or verb.places and chance(rng, placed):
        place = place_of(rng, verb.places, verb.need == "to")
    manner = ("", "")
    ways = MANNERS_OF.get(verb.infinitive)
    if ways and form == "past" and chance(rng, 0.4):
        manner = pick(rng, ways)
        place = place if verb.need else ("", "")
        if manner[0] in ("gut", "schlecht") and objects or manner[0] == "allein" and subject.person > 2:
            manner = ("", "")

    no = not (habit or frequency[0]) and chance(rng, negated)
    if no and any(o.phrase.determiner in NUMBERS or o.phrase.determiner == "fixed" for o in objects):
        no = False
    if no:
        place = place if verb.need else ("", "")
        objects = [o._replace(phrase=phrase(o.phrase.noun, "kein", o.phrase.plural, *adjective_of(o.phrase)))
                   if o.phrase.noun and o.phrase.determiner in INDEFINITES and not o.german else o
                   for o in objects]
    return Clause(subject, verb, tense, form, modal, tuple(objects), place, directed, time, frequency, manner,
                  negated=no, likes=when == "likes")


def adjective_of(words: Phrase) -> Pair:
    """The adjective in a noun phrase, in both languages."""
    return words.adjective, dict(ATTRIBUTES[words.noun.word]).get(words.adjective, "")


def past_tense(rng: random.Random, subject: Phrase, state: bool = False) -> str:
    """Perfekt or Präteritum: du and ihr take the Perfekt, states the Präteritum, others either."""
    if subject.person in (1, 4):
        return "perfect"
    return "past" if state else pick(rng, ("perfect", "perfect", "past"))


def place_of(rng: random.Random, places: tuple, directed: bool) -> Pair:
    """One of the places: where, or where to."""
    at_de, to_de, at_en, to_en, _ = pick(rng, places)
    return (to_de, to_en) if directed else (at_de, at_en)

# -------------------------------------------------------------------------------------------- templates
#
# Each makes one kind of sentence, in both languages.

PRESENT_OR_PAST = ("now", "past")


def statement(rng: random.Random) -> Pair:
    """Der Mann kauft heute einen Hut."""
    clause = make(rng)
    return finish(clause.german(), clause.english())


def time_first(rng: random.Random) -> Pair:
    """Morgen fährt der Mann nach Berlin: the verb stays second, so the subject follows it."""
    when = pick(rng, ("past", "future", "habit", "now", "past", "future"))
    clause = make(rng, when, ACTIVE[when], timed=1, negated=0.04)
    if not clause.time[0]:
        return time_first(rng)
    de, en = ("jetzt", "now") if clause.time[0] == "gerade" else clause.time
    clause = clause._replace(time=("", ""))
    return finish(clause.german(front=de), f"{en} {clause.english()}")


ACTIVE = {when: [verb for verb in FRAMES_FOR[when] if verb.kind[0] != "s"] for when in FRAMES_FOR}


def place_first(rng: random.Random) -> Pair:
    """Im Park spielen die Kinder: English leaves the place at the end."""
    clause = make(rng, pick(rng, PRESENT_OR_PAST), PLACED, timed=0.3, placed=1, negated=0)
    if not clause.place[0]:
        return place_first(rng)
    place, bare = clause.place, clause._replace(place=("", ""))
    return finish(bare.german(front=place[0]), clause.english())


PLACED = [verb for verb in ACTIVE["activity"] if verb.places and not verb.need]


def object_first(rng: random.Random) -> Pair:
    """Diesen Film habe ich gesehen: the case tells that it is the object."""
    clause = make(rng, pick(rng, PRESENT_OR_PAST), THINGS, negated=0)
    thing = clause.objects[-1].phrase
    marked = thing.noun and thing.noun.gender == "m" and not thing.plural
    if not marked or thing.determiner not in ("der", "dieser"):
        return object_first(rng)
    rest = clause._replace(objects=clause.objects[:-1])
    return finish(rest.german(front=thing.cases[1]), clause.english())


def takes_thing(verb: Verb) -> bool:
    """Whether the last object is a thing, in the accusative, without a preposition."""
    if not verb.objects:
        return False
    case, german, _, choices, _ = verb.objects[-1]
    return case == 1 and not german and not any(isinstance(c, Phrase) or c.group in PEOPLE for c in choices)


THINGS = [verb for verb in ACTIVE["past"] if takes_thing(verb)]


def make_asked(rng: random.Random, when: str, verbs=None, **options) -> Clause:
    """A clause that one may ask about: not what I am doing now."""
    clause = make(rng, when, verbs, **options)
    while clause.subject.determiner == "ein" or clause.subject.pronoun in ("ich", "wir") and not (
            clause.modal or clause.form == "will"):
        clause = make(rng, when, verbs, **options)
    return clause._replace(manner=("", ""))


def question(rng: random.Random) -> Pair:
    """Hat der Mann das Fenster geöffnet?"""
    clause = make_asked(rng, pick(rng, ("now", "past", "future", "modal", "past", "habit")), negated=0)
    return finish(clause.german("first"), clause.english("question"), "?")


ASKED = ["wer", "was", "was", "wen", "wo", "wohin", "wann", "warum", "welcher", "wie viele"]


def w_question(rng: random.Random) -> Pair:
    """Wo arbeitet dein Bruder?"""
    word = pick(rng, ASKED)
    when = pick(rng, PRESENT_OR_PAST)
    if word == "wer":
        clause = make(rng, pick(rng, ("now", "past", "modal")), PERSONS, negated=0, subject=WHO)
        return finish(clause.german(), clause.english(), "?")
    if word == "wann":
        clause = make_asked(rng, pick(rng, ("past", "future")), ACTIVE["intended"], timed=0, negated=0)
        if clause.form == "will":
            clause = clause._replace(tense="future", time=("", ""))
        return finish(clause.german("first", "wann"), "when " + clause.english("question"), "?")
    if word == "warum":
        clause = make_asked(rng, pick(rng, ("now", "past", "modal")), negated=0.2)
        return finish(clause.german("first", "warum"), "why " + clause.english("question"), "?")
    if word in ("wo", "wohin"):
        clause = make_asked(rng, when, PLACED + STAYING if word == "wo" else GOING, placed=1, negated=0)
        clause = clause._replace(place=("", ""))
        return finish(clause.german("first", word), "where " + clause.english("question"), "?")
    clause = make_asked(rng, when, OBJECTS_OF[word], negated=0, placed=0)
    thing = clause.objects[-1]
    case, words = thing.case, thing.phrase
    if word == "wen":
        asked = join(thing.german, "wen" if case == 1 else "wem"), "whom"
    elif word == "was" and thing.german:
        asked = f"wo{'r' if thing.german[0] in 'aeiouü' else ''}{thing.german}", "what"
    elif word == "was":
        asked = "was", "what"
    elif words.noun is None or not words.noun.plural:
        return w_question(rng)
    elif word == "welcher":
        which = phrase(words.noun, "welcher", words.plural)
        asked = join(thing.german, which.cases[case]), which.english
    else:
        many = phrase(words.noun, "", True)
        asked = "wie viele " + many.cases[case], "how many " + many.english
    clause = without_object(clause)
    return finish(clause.german("first", asked[0]), f"{asked[1]} {clause.english('question')}", "?")


def without_object(clause: Clause) -> Clause:
    """The clause with a gap for its last object, which a question word or a relative pronoun stands for."""
    gap = clause.objects[-1]._replace(phrase=GAP)
    doubled = clause.verb.english.tail.endswith("on")       # "that you switched on on Monday" is not said
    return clause._replace(objects=(*clause.objects[:-1], gap), manner=("", ""), time=("", "") if doubled
                           else clause.time)


WHO = Phrase(("wer",) * 4, "who", "", 2)
PERSONS = [verb for verb in FRAMES if verb.subjects[0] in ("person", "adult")]
STAYING = [verb for verb in FRAMES if verb.need == "at" and verb.infinitive != "ankommen"]
GOING = [verb for verb in FRAMES if verb.need == "to"]
OBJECTS_OF = {
    "was": THINGS + [verb for verb in FRAMES if verb.infinitive in ("lachen", "träumen") or verb.objects and
                     verb.objects[-1][1:3] in (("über", "about"), ("auf", "to"))],
    "wen": [verb for verb in FRAMES if len(verb.objects) == 1 and verb.objects[0][2] != "by" and
            all(isinstance(c, Noun) and c.group in PEOPLE for c in verb.objects[0][3])],
    "welcher": [verb for verb in THINGS if verb.infinitive in (
        "lesen kaufen suchen verkaufen putzen tragen anziehen reparieren öffnen singen besuchen").split()],
    "wie viele": [verb for verb in THINGS
                  if verb.infinitive in "essen kaufen lesen schreiben bekommen malen backen".split()],
}


def copula(subject: Phrase, predicate: Pair, tense: str = "present", negated: bool = False) -> Clause:
    """X ist Y."""
    return Clause(subject, SEIN, tense, "past" if tense == "past" else "simple", predicate=predicate,
                  negated=negated)


DEGREES = [("sehr", "very"), ("ziemlich", "quite"), ("", ""), ("", ""), ("", "")]
TOO = [("zu", "too")]
EXCESSIVE = set("teuer groß klein alt jung schwer heiß kalt lang kurz müde faul langweilig schwierig".split())
OPPOSITES = [("groß", "klein"), ("alt", "neu"), ("teuer", "billig"), ("lang", "kurz"),
             ("sauber", "schmutzig"),
             ("schwer", "leicht"), ("interessant", "langweilig"), ("fleißig", "faul"), ("reich", "arm"),
             ("glücklich", "traurig"), ("heiß", "kalt"), ("schwierig", "einfach"), ("alt", "jung"),
             ("gesund", "krank")]
ENGLISH_OF = {row[0]: row[2] for row in ADJECTIVES}
ABSOLUTE = {row[0] for row in ADJECTIVES if not row[1]}
DESCRIBED = [noun for noun in WORDS.values() if PREDICATES[noun.word] and noun.group not in ("cup", "fodder")]
POSSESSED = [noun for group in "thing piece device clothes vehicle furniture home pet".split()
             for noun in GROUPS[group]]


def owned(rng: random.Random, noun: Noun) -> Phrase:
    """Das Auto meines Vaters, my father's car; Annas Auto, Anna's car."""
    thing = phrase(noun)
    owner = name(rng) if chance(rng, 0.3) else noun_phrase(rng, pick(rng, GROUPS["kin"] + GROUPS["contact"]),
                                                           adjective=0)
    if owner.plural and noun.group in PERSONAL:
        return owned(rng, noun)
    english = f"{owner.english}{chr(39) if owner.plural else chr(39) + 's'} {noun.english}"
    if owner.determiner == "name":
        if owner.cases[0][-1] in "sx":   # Thomas' Auto: its apostrophe is left out here
            return owned(rng, noun)
        words = (f"{owner.cases[0]}s {decline_noun(noun, case, False)}" for case in range(4))
    else:
        words = (f"{form} {owner.cases[3]}" for form in thing.cases)
    return thing._replace(cases=tuple(words), english=english, english_object=english)


def described(rng: random.Random) -> tuple[Phrase, list]:
    """Someone or something, and the adjectives that can be said of it."""
    if chance(rng, 0.35):
        who = someone(rng, pronouns=0.4)
        return (who if not who.adjective else phrase(who.noun, who.determiner,
                                                     who.plural)), PREDICATES["person"]
    noun = pick(rng, DESCRIBED)
    if noun in POSSESSED and chance(rng, 0.35):
        return owned(rng, noun), PREDICATES[noun.word]
    return noun_phrase(rng, noun, adjective=0, articles=("der", "dieser", "mein") if noun.group in PERSONAL
                       else
                       [a for a in ARTICLES_OF[noun.group]
                        if a not in ("ein", "some", "num")]), PREDICATES[noun.word]


def description(rng: random.Random) -> Pair:
    """Das Auto meines Vaters ist ziemlich alt."""
    subject, adjectives = described(rng)
    de, _, en, _ = pick(rng, adjectives)
    tense, style = pick(rng, ("present", "present", "past")), rng.random()
    if style < 0.15:
        for first, second in OPPOSITES:
            for one, other in ((first, second), (second, first)):
                if one == de and any(row[0] == other for row in adjectives):
                    predicate = f"{one}, sondern {other}", f"{en} but {ENGLISH_OF[other]}"
                    clause = copula(subject, predicate, tense, True)
                    return finish(clause.german(), clause.english())
    if style < 0.3:
        clause = copula(subject, (de, en), tense, True)
    elif style < 0.4:
        clause = copula(subject, (de, en), tense)
        return finish(clause.german("first"), clause.english("question"), "?")
    elif style < 0.5 and de in ("alt", "groß", "lang", "teuer", "schwer"):
        de_degree, en_degree = "wie " + de, "how " + en
        clause = copula(subject, ("", ""), tense)
        return finish(clause.german("first", de_degree), f"{en_degree} {clause.english('question')}", "?")
    else:
        degree = pick(rng, DEGREES + TOO * (de in EXCESSIVE)) if de not in ABSOLUTE else ("", "")
        clause = copula(subject, (join(degree[0], de), join(degree[1], en)), tense)
    return finish(clause.german(), clause.english())


def compared(row: tuple) -> tuple[str, str, str, str]:
    """(älter, ältest-, older, oldest)."""
    de, stem, en, _ = row
    more = {"teuer": "teurer", "berühmt": "berühmter"}.get(de, stem + "er")
    most = {"groß": "größt", "berühmt": "berühmtest"}.get(
        de, stem + ("est" if stem[-1] in "tdzß" or de in ("neu",) else "st"))
    if en in COMPARED:
        return more, most, *COMPARED[en]
    vowels = sum(letter in "aeiouy" and (i == 0 or en[i - 1] not in "aeiouy") for i,
                 letter in enumerate(en.removesuffix("e")))
    if en.endswith("y") and len(en) < 9:
        return more, most, en[:-1] + "ier", en[:-1] + "iest"
    if vowels == 1 or en in ("clever", "quiet"):
        return more, most, en.removesuffix("e") + "er", en.removesuffix("e") + "est"
    return more, most, "more " + en, "most " + en


COMPARISONS = {row[0]: compared(row) for row in ADJECTIVES if row[1]}


def comparison(rng: random.Random) -> Pair:
    """Dieser Koffer ist schwerer als die Tasche."""
    if chance(rng, 0.4):
        subject, other = someone(rng, pronouns=0.3), someone(rng, pronouns=0)
        rows = PREDICATES["person"] + PREDICATES["adult"] * (subject.noun is None and other.noun is None)
        subject = subject if not subject.adjective else phrase(subject.noun, subject.determiner,
                                                               subject.plural)
        other = other if not other.adjective else phrase(other.noun, other.determiner, other.plural)
        if "ein" in (subject.determiner,
                     other.determiner) or other.english == subject.english or other.pronoun == "wir":
            return comparison(rng)
    else:
        group = pick(rng, COMPARABLE)
        first, second = rng.sample(GROUPS[group], 2)
        rows = [row for row in PREDICATES[first.word] if row in PREDICATES[second.word]]
        articles = ("der", "dieser", "mein") if group in PERSONAL else ("der", "dieser")
        subject, other = noun_phrase(rng, first, articles, adjective=0), noun_phrase(rng, second, articles,
                                                                                     adjective=0)
    de, stem, en, _ = pick(rng, rows)
    if not stem:
        return comparison(rng)
    if chance(rng, 0.3):
        negated = chance(rng, 0.5)
        predicate = f"so {de} wie {other.cases[0]}", f"as {en} as {other.english_object}"
        clause = copula(subject, predicate, "present", negated)
        german = clause.german() if negated else clause.german().replace("so ", "genauso ", 1)
        return finish(german, clause.english() if negated else clause.english().replace("as ", "just as ", 1))
    more_de, _, more_en, _ = COMPARISONS[de]
    predicate = f"{more_de} als {other.cases[0]}", f"{more_en} than {other.english_object}"
    clause = copula(subject, predicate)
    return finish(clause.german(), clause.english())


COMPARABLE = "pet grazer clothes dress thing device furniture vehicle building area text topic matter".split()


PROFESSIONS = {
    "er": "Lehrer Arzt Koch Künstler Bauer Bäcker Kellner Ingenieur Polizist Student".split(),
    "sie": "Lehrerin Ärztin Studentin Verkäuferin Sängerin".split(),
}


def profession(rng: random.Random) -> Pair:
    """Mein Bruder ist Arzt: no article in German, one in English."""
    chosen = rng.random()
    if chosen < 0.5:
        subject = pronoun(pick(rng, ("er", "sie"))) if chosen < 0.25 else name(rng)
    else:
        subject = noun_phrase(rng, pick(rng, GROUPS["kin"][:10] + GROUPS["contact"][:4]), adjective=0.2)
    if subject.plural or subject.pronoun not in PROFESSIONS:
        return profession(rng)
    noun = WORDS[pick(rng, PROFESSIONS[subject.pronoun])]
    what, a = noun.word, with_article(noun.english)
    style = rng.random()
    if subject.noun and subject.noun.word not in ("Bruder", "Schwester", "Sohn", "Tochter"):
        style *= 0.45                                   # the old have become what they are
    if style < 0.3:
        clause = copula(subject, (what, a), pick(rng, ("present", "past")))
    elif style < 0.45:
        clause = copula(subject, (phrase(noun, "kein").cases[0], "not " + a))
        return finish(clause.german(), clause.english())
    elif style < 0.75:
        clause = Clause(subject, BECOME, modal=pick(rng, ("wollen", "möchten", "können")),
                        predicate=(what, a))
    else:
        tense = pick(rng, ("past", "perfect", "future"))
        clause = Clause(subject, BECOME, tense, "will" if tense == "future" else "past", predicate=(what, a))
    if chance(rng, 0.25):
        return finish(clause.german("first"), clause.english("question"), "?")
    return finish(clause.german(), clause.english())


BECOME = read_verb("werden", "wird", "wurde", "ist geworden", "become/became/become", "e")

# Where things and animals are put and found: (preposition, in English where and where to, landmarks).
SPOTS = [
    ("auf", "on", "on", "Tisch Stuhl Sofa Bett Regal Boden Teppich Sessel"),
    ("unter", "under", "under", "Tisch Bett Stuhl Sofa Baum"),
    ("neben", "next to", "next to", "Tisch Bett Sofa Schrank Tür Fenster Regal Sessel Lampe"),
    ("vor", "in front of", "in front of", "Tür Schrank Sofa Fenster Bett Haus"),
    ("hinter", "behind", "behind", "Tür Sofa Schrank Baum Haus Sessel"),
    ("in", "in", "into", "Schublade Kiste Tasche Schrank Rucksack"),
    ("zwischen", "between", "between", "Tisch Bett Sofa Schrank Tür Fenster Regal Sessel"),
]
LYING = "Buch Zeitung Brief Schlüssel Handy Stift Kissen Messer Gabel Löffel Kamera Ball Hemd Schal".split()
STANDING = "Lampe Vase Flasche Glas Tasse Teller Kerze Koffer Radio Wecker".split()
OUTDOORS = {"Baum", "Haus"}


def spot(rng: random.Random, thing: Noun, case: str, places: tuple[str, ...], to: bool) -> Pair:
    """A place beside something in a room: auf dem Tisch, on the table; dative where, accusative where to."""
    de, en_at, en_to, landmarks = pick(rng, [row for row in SPOTS if row[0] in places])
    bad = {thing.word} | ({"Regal"} if thing.group in ("pet", *PEOPLE) else OUTDOORS)
    if thing.word in STANDING and de == "auf":
        landmarks = "Tisch Regal Boden"
    first = pick(rng, [WORDS[word] for word in landmarks.split() if word not in bad])
    land = noun_phrase(rng, first, ("der",), adjective=0.3)
    german, english = land.cases[CASES[case]], land.english
    if de == "zwischen":
        other = phrase(pick(rng, [WORDS[word] for word in landmarks.split()
                                  if word not in (first.word, thing.word)]))
        german, english = f"{german} und {other.cases[CASES[case]]}", f"{english} and {other.english}"
    return contract(f"{de} {german}"), f"{en_to if to else en_at} {english}"


ONE = ("der", "der", "mein", "dein", "unser", "dieser")


def position(rng: random.Random) -> Pair:
    """Das Buch liegt auf dem Tisch; sie legt das Buch auf den Tisch."""
    style = rng.random()
    if style < 0.25:                                    # a thing somewhere: English says no more than "is"
        lying = chance(rng, 0.6)
        noun = WORDS[pick(rng, LYING if lying else STANDING)]
        verb = POSITION["liegen" if lying else "stehen"]._replace(english=SEIN.english)
        subject = noun_phrase(rng, noun, ("der", "mein", "dein", "dieser") if noun.group in PERSONAL
                              else ("der",))
        small = "auf neben in unter zwischen".split() if lying else ["auf", "neben"]
        tense, form = pick(rng, (("present", "simple"), ("past", "past")))
        clause = Clause(subject, verb, tense, form, place=spot(rng, noun, "dat", tuple(small), False),
                        directed=True)
    elif style < 0.5:                                   # a person or an animal somewhere
        animal = chance(rng, 0.5)
        subject = noun_phrase(rng, pick(rng, GROUPS["pet"]), ONE) if animal else someone(rng)
        verb = POSITION[pick(rng, ("liegen", "sitzen")) if animal else pick(rng, ("sitzen", "stehen"))]
        where = tuple("auf unter neben vor hinter zwischen".split()) if animal else ("neben", "vor", "hinter",
                                                                                     "zwischen")
        if verb is POSITION["sitzen"] and not animal:
            de, en = pick(rng, (("Stuhl", "chair") if subject.person < 3 else ("Boden", "floor"),
                                ("Sofa", "sofa"), ("Bett", "bed"), ("Boden", "floor"), ("Teppich", "carpet")))
            place = contract(f"auf {phrase(WORDS[de]).cases[2]}"), f"on the {en}"
        else:
            place = spot(rng, subject.noun, "dat", where, False) if subject.noun else spot(rng, WORDS["Hund"],
                                                                                           "dat", where,
                                                                                           False)
        past = chance(rng, 0.4)
        clause = Clause(subject, verb, past_tense(rng, subject) if past else "present", "past" if past
                        else "progressive",
                        place=place, directed=True)
    elif style < 0.85:                                  # putting a thing somewhere
        lying = chance(rng, 0.6)
        noun = WORDS[pick(rng, LYING if lying else STANDING)]
        subject = someone(rng)
        what = noun_phrase(rng, noun, ("der", "der", "own", "ein") if noun.group in PERSONAL
                           else ("der", "ein"), subject)
        small = "auf neben in unter".split() if lying else ["auf", "neben"]
        base = make(rng, pick(rng, ("now", "past", "modal", "future")),
                    [PUT["legen" if lying else "stellen"]], subject, negated=0)
        clause = base._replace(objects=(Object(1, "", "", what),),
                               place=spot(rng, noun, "acc", tuple(small), True), directed=True)
    else:                                               # an animal on its way
        subject = noun_phrase(rng, pick(rng, GROUPS["pet"]), ONE)
        verb = POSITION[pick(rng, ("springen", "laufen"))]
        where = ("auf",) if verb is POSITION["springen"] else ("unter", "hinter")
        past = chance(rng, 0.5)
        place = spot(rng, subject.noun, "acc", where, True)
        place = (place[0], place[1].replace("on ", "onto ", 1)) if where == ("auf",) else place
        clause = Clause(subject, verb, past_tense(rng, subject) if past else "present", "past" if past
                        else "progressive",
                        place=place, directed=True)
    if style < 0.25 and clause.subject.determiner != "ein" and chance(rng, 0.3):
        clause = clause._replace(place=("", ""))
        return finish(clause.german("first", "wo"), "where " + clause.english("question"), "?")
    if style < 0.85 and chance(rng, 0.2) and clause.subject.pronoun not in ("ich", "wir"):
        return finish(clause.german("first"), clause.english("question"), "?")
    return finish(clause.german(), clause.english())


PUT = {name: POSITION[name]._replace(subjects=("person",), kind="ad") for name in ("legen", "stellen")}

THERE = [("in dieser Stadt", "in this city", "building area"),
         ("in unserem Dorf", "in our village", "building"),
         ("in der Küche", "in the kitchen", "Tisch Stuhl Schrank Regal"),
         ("im Wohnzimmer", "in the living room", "furniture"),
         ("in diesem Zimmer", "in this room", "furniture"),
         ("in diesem Geschäft", "in this shop", "clothes dress device dishes"),
         ("auf dem Markt", "at the market", "food dish"),
         ("in diesem Restaurant", "at this restaurant", "drink alcohol Fisch Suppe Salat Fleisch")]


def there_is(rng: random.Random) -> Pair:
    """In unserem Dorf gibt es zwei Schulen."""
    de, en, kinds = pick(rng, THERE)
    noun = pick(rng, nouns(kinds))
    if noun.word in ("Stadt", "Dorf"):
        return there_is(rng)
    past, no = chance(rng, 0.25), chance(rng, 0.2)
    many = noun.group in ("clothes", "dress", "device", "dishes", "food")
    if no:
        words = phrase(noun, "kein", many)
        words = words._replace(english="no " + (plural_en(noun.english) if many else noun.english))
    else:
        words = noun_phrase(rng, noun, ("some",) if many or not noun.plural else ("ein", "num"),
                            adjective=0.4)
    be = ("were" if past else "are") if words.plural else ("was" if past else "is")
    verb = "gab es" if past else "gibt es"
    if chance(rng, 0.2) and not no:
        return finish(f"{verb} {de} {words.cases[1]}", f"{be} there {words.english} {en}", "?")
    return finish(f"{de} {verb} {words.cases[1]}", f"there {be} {words.english} {en}")


def echo(subject: Phrase) -> Phrase | None:
    """The pronoun for a subject, where it is clear."""
    return pronoun(subject.pronoun) if subject.pronoun else None


def combine(rng: random.Random, de: str, en: str, sub: Clause, main: Clause,
            subordinate_first: float = 0.5) -> Pair:
    """Two clauses, one introduced by the conjunction, in either order; the noun goes into the first."""
    subject, other = main.subject, echo(main.subject)
    same = sub.subject is subject and other is not None
    if chance(rng, subordinate_first):
        main = main._replace(subject=other) if same else main
        return finish(f"{de} {sub.german('last')}, {main.german('first')}",
                      f"{en} {sub.english()}, {main.english()}")
    sub = sub._replace(subject=other) if same else sub
    return finish(f"{main.german()}, {de} {sub.german('last')}", f"{main.english()} {en} {sub.english()}")


REASONS = [  # (how one is, what one does because of it, what one does all the same)
    ("müde", "tired", "schlafen ausruhen", "arbeiten lernen tanzen einkaufen aufräumen helfen kochen"),
    ("hungrig", "hungry", "essen kochen backen", "arbeiten lernen warten"),
    ("durstig", "thirsty", "trinken", "arbeiten warten tanzen"),
    ("krank", "ill", "schlafen ausruhen", "arbeiten tanzen reisen ausgehen schwimmen einkaufen putzen"),
    ("glücklich", "happy", "singen tanzen", "weinen"),
    ("traurig", "sad", "weinen", "singen tanzen ausgehen"),
    ("faul", "lazy", "fernsehen schlafen", "putzen aufräumen helfen lernen"),
    ("fleißig", "hard-working", "arbeiten lernen putzen aufräumen", "fernsehen schlafen"),
    ("nett", "nice", "helfen einladen schenken mitbringen leihen", ""),
    ("reich", "rich", "reisen fliegen bauen", "arbeiten"),
    ("nervös", "nervous", "beeilen weinen", "zuhören schlafen tanzen"),
]


def frames(names: str) -> list[Verb]:
    """All frames of some verbs."""
    return [verb for name in names.split() for verb in BY_NAME[name]]


def reason(rng: random.Random) -> Pair:
    """Er bleibt zu Hause, weil er krank ist; obwohl, denn, deshalb."""
    de, en, because, although = pick(rng, REASONS)
    contrary = bool(although) and chance(rng, 0.4)
    when = pick(rng, PRESENT_OR_PAST)
    main = make(rng, when, frames(although if contrary else because), negated=0, placed=0.2)
    subject = main.subject
    if echo(subject) is None or subject.determiner == "ein" or subject.adjective:
        return reason(rng)
    main = main._replace(manner=("", ""))
    state = copula(subject, (de, en), "past" if when == "past" else "present")
    if contrary:
        if chance(rng, 0.3):
            second = main._replace(subject=echo(subject))
            return finish(f"{state.german()}, aber {second.german()}",
                          f"{state.english()}, but {second.english()}")
        return combine(rng, "obwohl", "although", state, main)
    style = rng.random()
    if style < 0.2:
        second = main._replace(subject=echo(subject))
        return finish(f"{state.german()}, deshalb {second.german('first')}",
                      f"{state.english()}, so {second.english()}")
    if style < 0.4:
        second = state._replace(subject=echo(subject))
        return finish(f"{main.german()}, denn {second.german()}",
                      f"{main.english()} because {second.english()}")
    return combine(rng, "weil", "because", state, main, 0.35)


def saying(name: str, third: str, past: str, english: str) -> Verb:
    """A verb that a clause with dass or ob follows."""
    return read_verb(name, third, past, "hat ", english, "s", "person")


SAYING = [saying("glauben", "glaubt", "glaubte", "believe"),
          saying("wissen", "weiß", "wusste", "know/knew/known"),
          saying("sagen", "sagt", "sagte", "say/said/said"), saying("hoffen", "hofft", "hoffte", "hope"),
          saying("denken", "denkt", "dachte", "think/thought/thought")]
SHARED = [("es ist schön", "it is nice"), ("es ist schade", "it is a pity"),
          ("ich bin sicher", "I am sure"), ("es ist klar", "it is clear")]


def content(rng: random.Random) -> Pair:
    """Ich glaube, dass der Mann das Auto verkauft; ich weiß nicht, ob ..."""
    style = rng.random()
    clause = make(rng, pick(rng, ("now", "past", "future", "modal", "past")))
    taken = set(clause.subject.english.split()) - {"my", "your", "the", "this", "our", "and"}
    if style < 0.5:
        if chance(rng, 0.2):
            de, en = pick(rng, SHARED)
        else:
            said = Clause(someone(rng, pronouns=0.5), pick(rng, SAYING))
            if not said.subject.light and taken & set(said.subject.english.split()):
                return content(rng)
            de, en = said.german(), said.english()
        return finish(f"{de}, dass {clause.german('last')}", f"{en} that {clause.english()}")
    knowing = Clause(someone(rng, pronouns=0.5), SAYING[1])
    known = clause.subject.pronoun in ("ich", "wir") and not clause.modal
    if known or taken & set(knowing.subject.english.split()):
        return content(rng)
    question_ = clause._replace(negated=False) if not any(o.phrase.determiner == "kein"
                                                          for o in clause.objects) else None
    if question_ is None:
        return content(rng)
    if knowing.subject.pronoun in ("du", "ihr"):
        start, mark = (knowing.german("first"), knowing.english("question")), "?"
    else:
        knowing = knowing._replace(negated=True)
        start, mark = (knowing.german(), knowing.english()), "."
    if style < 0.8:
        return finish(f"{start[0]}, ob {question_.german('last')}",
                      f"{start[1]} whether {question_.english()}", mark)
    if clause.time[0] or clause.place[0] or style < 0.9:
        return finish(f"{start[0]}, warum {question_.german('last')}",
                      f"{start[1]} why {question_.english()}", mark)
    if question_.form == "past" and not question_.modal and question_.verb.kind[0] != "s":
        return finish(f"{start[0]}, wann {question_.german('last')}",
                      f"{start[1]} when {question_.english()}", mark)
    return content(rng)


LASTING = frames("schlafen arbeiten lesen kochen tanzen lernen essen trinken schreiben putzen fernsehen "
                 "singen schwimmen waschen "
                 "aufräumen warten spielen hören ausruhen")
SUDDEN = frames("ankommen anrufen zurückkommen aufwachen")
EVERYDAY = [verb for verb in ACTIVE["past"] if verb.subjects[0] == "person" and verb.kind[0] == "a"
            and not set("lymu") & set(verb.kind) and verb.infinitive not in ("schlafen", "beeilen",
                                                                             "träumen")]


def narrated(rng: random.Random, verbs, subject: Phrase | None = None, **options) -> Clause:
    """A clause in the Präteritum, without a time."""
    while True:
        clause = make(rng, "past", verbs, subject, timed=0, negated=0, **options)
        clear = subject is not None or echo(clause.subject)
        if clear and clause.subject.person not in (1, 4) and clause.subject.determiner != "ein":
            break
    return clause._replace(tense="past", manner=("", ""))


def same_one(first: Phrase, second: Phrase) -> bool:
    """Whether two subjects are the same, or made from the same noun."""
    return first.english == second.english or first.noun is not None and first.noun == second.noun


def sequence(rng: random.Random) -> Pair:
    """Nachdem er gegessen hatte, las er; während, als, bevor."""
    style = pick(rng, ("während", "als", "nachdem", "bevor"))
    first = narrated(rng, SUDDEN if style == "als" else LASTING if style == "während" else EVERYDAY,
                     placed=0.2)
    if style in ("während", "als"):
        second = narrated(rng, LASTING, placed=0.2, nouns_used=(first.subject.noun,))
        while same_one(first.subject, second.subject):
            second = narrated(rng, LASTING, placed=0.2)
        if style == "als":
            return combine(rng, "als", "when", first, second._replace(form="past progressive"), 0.7)
        return combine(rng, "während", "while", first._replace(form="past progressive"), second, 0.6)
    second = narrated(rng, EVERYDAY, first.subject, placed=0.2)
    while second.verb.base == first.verb.base:
        second = narrated(rng, EVERYDAY, first.subject, placed=0.2)
    if style == "nachdem":
        return combine(rng, "nachdem", "after", first._replace(tense="pluperfect", form="past perfect"),
                       second, 0.7)
    return combine(rng, "bevor", "before", first, second, 0.5)


WEATHER = [("es regnet", "it rains", "in"), ("es schneit", "it snows", "in"),
           ("es kalt ist", "it is cold", "in"),
           ("die Sonne scheint", "the sun shines", "out"), ("es warm ist", "it is warm", "out"),
           ("das Wetter schön ist", "the weather is nice", "out"),
           ("das Wetter schlecht ist", "the weather is bad", "in")]
INDOORS = frames("lesen fernsehen kochen backen hören aufräumen schreiben")
OUTSIDE = frames("schwimmen wandern") + [verb for verb in FRAMES if verb.prefix == "spazieren "]
LEISURE = INDOORS + OUTSIDE + frames("tanzen malen besuchen einkaufen helfen lernen")


def condition(rng: random.Random) -> Pair:
    """Wenn es regnet, bleiben wir zu Hause."""
    if chance(rng, 0.55):
        de, en, side = pick(rng, WEATHER)
        main = make(rng, "now", INDOORS if side == "in" else OUTSIDE, timed=0, placed=0, negated=0)
        if side == "in" and chance(rng, 0.25):
            main = make(rng, "now", BY_NAME["bleiben"], timed=0,
                        negated=0)._replace(place=("zu Hause", "at home"))
        sub = None
    else:
        main = make(rng, "now", LEISURE, timed=0, placed=0.2, negated=0)
        if echo(main.subject) is None or main.subject.determiner == "ein":
            return condition(rng)
        state = Clause(main.subject, BY_NAME["haben"][0], objects=(Object(1, "", "", TIME),))
        sub = state
    future = chance(rng, 0.4)
    modal = pick(rng, ("können", "wollen", "sollen")) if not future and chance(rng, 0.4) else ""
    main = main._replace(tense="future" if future else "present", form="will" if future else "simple",
                         modal=modal,
                         manner=("", ""))
    if sub:
        return combine(rng, "wenn", "if", sub, main)
    if chance(rng, 0.6):
        return finish(f"wenn {de}, {main.german('first')}", f"if {en}, {main.english()}")
    return finish(f"{main.german()}, wenn {de}", f"{main.english()} if {en}")


TIME = Phrase(("Zeit",) * 4, "time", "time", 2, determiner="fixed")


def purpose(rng: random.Random) -> Pair:
    """Er geht in die Stadt, um einen Hut zu kaufen."""
    verb, place = pick(rng, PURPOSES)
    tags = place[4].split()
    walks = "ride" not in tags or "go" in tags and chance(rng, 0.6)
    goer = BY_NAME["gehen"][0] if walks else RIDE
    subject = subject_of(rng, verb)
    if subject.pronoun == "" or subject.determiner == "ein":
        return purpose(rng)
    going = make(rng, pick(rng, ("now", "past", "future", "modal")), [goer], subject, timed=0.5, negated=0)
    going = going._replace(place=(place[1], place[3]))
    doing = make(rng, "now", [verb], subject, timed=0, placed=0, negated=0)
    return finish(f"{going.german()}, um {doing.german('zu')}",
                  f"{going.english()} to {doing.english('infinitive')}")


RIDE = BY_NAME["fahren"][0]
PURPOSES = [(verb, place) for verb in FRAMES_FOR["intended"] for place in verb.places
            if verb.kind[0] == "a" and not verb.need and place[1]
            and {"go", "ride", "enter"} & set(place[4].split())
            and verb.infinitive != "frühstücken"
            and (place[0] != "im Bett" or verb.infinitive in ("schlafen", "ausruhen"))]

PLANS = [  # verbs that take an infinitive with "zu", and the infinitives that make sense with them
    (read_verb("versuchen", "versucht", "versuchte", "hat versucht", "try/tried/tried", "a"), "now past past",
     "öffnen schließen reparieren verkaufen schlafen lernen suchen helfen aufräumen"),
    (read_verb("vergessen", "vergisst", "vergaß", "hat vergessen", "forget/forgot/forgotten", "e"), "past",
     "schließen bezahlen mitbringen füttern ausschalten einladen einkaufen putzen anrufen abholen"),
    (read_verb("versprechen", "verspricht", "versprach", "hat versprochen", "promise", "e"), "past",
     "helfen besuchen anrufen aufräumen kochen mitbringen reparieren schreiben abholen füttern"),
    (read_verb("planen", "plant", "plante", "hat geplant", "plan/planned/planned", "a"), "now past",
     "reisen fliegen bauen besuchen verkaufen mieten einladen"),
]
JUDGEMENTS = [("es ist schwierig", "it is difficult", "lernen reparieren verkaufen bauen"),
              ("es ist wichtig", "it is important", "lernen helfen zuhören arbeiten"),
              ("es ist schön", "it is nice", "tanzen wandern reisen schwimmen lesen besuchen kochen"),
              ("es ist gesund", "it is healthy", "schwimmen wandern")]


def infinitive(rng: random.Random) -> Pair:
    """Er hat vergessen, das Fenster zu schließen; es ist schön, im Meer zu schwimmen."""
    if chance(rng, 0.25):
        de, en, names = pick(rng, JUDGEMENTS)
        doing = make(rng, "now", frames(names), NOBODY, timed=0, placed=0.5, negated=0)
        start = (de, en)
    else:
        verb, whens, names = pick(rng, PLANS)
        subject = someone(rng, "adult")
        if subject.pronoun == "" or subject.determiner == "ein":
            return infinitive(rng)
        when = pick(rng, whens.split())
        past = when == "past"
        matrix = Clause(subject, verb, past_tense(rng, subject) if past else "present", "past" if past
                        else "progressive")
        doing = make(rng, "now", frames(names), subject, timed=0, placed=0, negated=0)
        start = matrix.german(), matrix.english()
    what = doing.german("zu")
    comma = ", " if len(what.split()) > 2 or start[1].startswith("it is") else " "
    return finish(f"{start[0]}{comma}{what}", f"{start[1]} to {doing.english('infinitive')}")


NOBODY = Phrase(("",) * 4, "", "", 2)
PASSIVES = [verb for verb in THINGS if verb.infinitive in (
    "öffnen schließen reparieren bauen verkaufen putzen waschen backen lesen essen trinken malen aufräumen "
    "fotografieren füttern finden suchen").split() and verb.subjects[0] in ("person", "adult")]


def passive(rng: random.Random) -> Pair:
    """Der Brief wurde gestern von meinem Vater geöffnet."""
    verb = pick(rng, PASSIVES)
    noun = pick(rng, [noun for noun in verb.objects[-1][3] if noun.group != "cup"] or [WORDS["Bier"]])
    thing = noun_phrase(rng, noun, ("der", "der", "dieser", "die") if noun.plural else ("der",),
                        adjective=0.3)
    tail = join(verb.english.tail, verb.objects[-1][2])
    participle = join(verb.english.participle, tail)
    agent = ("", "")
    if chance(rng, 0.4):
        who = someone(rng, "adult", pronouns=0)
        if who.noun != noun and who.pronoun != "wir":
            agent = contract(f"von {who.cases[2]}"), f"by {who.english_object}"
    style, person = rng.random(), thing.person
    if style < 0.55:
        time = time_of(rng, verb, "past") if chance(rng, 0.6) else ("", "")
        german = join(thing.cases[0], "wurde" if person == 2 else "wurden", time[0], agent[0],
                      verb.participle)
        english = join(thing.english, to_be(person, True), participle, agent[1], time[1])
    elif style < 0.8 and verb.kind[0] == "a":
        time = pick(rng, (("gerade", "at the moment"), ("jetzt", "now"), ("heute", "today")))
        german = join(thing.cases[0], "wird" if person == 2 else "werden", time[0], agent[0], verb.participle)
        english = join(thing.english, to_be(person, False), "being", participle, agent[1], time[1])
    elif verb.infinitive == "finden":
        return passive(rng)
    else:
        modal, en = pick(rng, (("müssen", "have to be"), ("können", "can be"), ("sollen", "should be")))
        en = en.replace("have", "has") if person == 2 else en
        german = join(thing.cases[0], PRESENT[modal][person], verb.participle, "werden")
        english = join(thing.english, en, participle)
    return finish(german, english)


SPANS = [("Minuten", "minutes", ("fünf", "zehn", "zwanzig", "dreißig")), ("Stunden", "hours", COUNTS[:4]),
         ("Tagen", "days", COUNTS), ("Wochen", "weeks", COUNTS), ("Monaten", "months", COUNTS),
         ("Jahren", "years", HOURS)]
SINCE = [("warten", 0, 2), ("schlafen", 0, 2), ("arbeiten", 1, 6), ("lernen", 2, 6), ("wohnen", 4, 6),
         ("suchen", 0, 3), ("spielen", 4, 6),
         ("lesen", 0, 2), ("tanzen", 0, 2), ("kennen", 4, 6), ("haben", 4, 6)]


def since(rng: random.Random) -> Pair:
    """Er wartet seit zwei Stunden auf den Bus: he has been waiting."""
    name_, low, high = pick(rng, SINCE)
    unit_de, unit_en, counts = pick(rng, SPANS[low:high])
    number = pick(rng, [count for count in counts if count in NUMBERS])
    verbs = [verb for verb in BY_NAME[name_] if name_ != "spielen" or "l" in verb.kind]
    clause = make(rng, "now", verbs, timed=0, placed=0.4, negated=0)
    what = clause.objects[-1].phrase if clause.objects else None
    if name_ in ("haben", "lesen") and (what.determiner in NUMBERS or what.noun
                                        and what.noun.group in ("matter", "mail")):
        return since(rng)
    clause = clause._replace(time=(f"seit {number} {unit_de}", f"for {NUMBERS[number]} {unit_en}"),
                             manner=("", ""),
                             form="perfect" if name_ in ("wohnen", "kennen", "haben")
                             else "perfect progressive")
    if clause.subject.pronoun not in ("ich", "wir") and chance(rng, 0.25):
        return finish(clause.german("first"), clause.english("question"), "?")
    return finish(clause.german(), clause.english())


PLEASE = read_verb("gefallen", "gefällt", "gefiel", "hat gefallen", "like", "s")


def pleasing(rng: random.Random) -> Pair:
    """Das Buch gefällt meiner Mutter: my mother likes the book."""
    noun = pick(rng, PLEASERS)
    articles = ("der", "der", "dieser", "die", "dein",
                "mein") if noun.group in PERSONAL else ("der", "dieser")
    theirs = noun in POSSESSED and chance(rng, 0.3)
    thing = owned(rng, noun) if theirs else noun_phrase(rng, noun, articles)
    who = someone(rng, pronouns=0.5)
    if who.pronoun == "wir" and not who.light or who.determiner == "ein":
        return pleasing(rng)
    past, no = chance(rng, 0.3), chance(rng, 0.2)
    tense = pick(rng, ("past", "perfect")) if past else "present"
    finite, end, _ = german_verb(PLEASE, thing.person, tense)
    auxiliary, words = english_verb(PLEASE.english, who.person, "past" if past else "simple", bare=no)
    if not (no or past or theirs) and chance(rng, 0.25) and who.pronoun not in ("ich", "wir"):
        auxiliary, words = english_verb(PLEASE.english, who.person, "simple", bare=True)
        order = (who.cases[2], thing.cases[0]) if who.light else (thing.cases[0], who.cases[2])
        return finish(join(finite, *order, end), join(auxiliary, who.english, words, thing.english), "?")
    return finish(join(thing.cases[0], finite, who.cases[2], "nicht" if no else "", end),
                  join(who.english, auxiliary, "not" if no else "", words, thing.english))


PLEASERS = nouns("text topic clothes dress thing piece device furniture vehicle home area building")

IMPERATIVE = {"essen": "iss", "lesen": "lies", "helfen": "hilf", "geben": "gib", "nehmen": "nimm",
              "sprechen": "sprich",
              "vergessen": "vergiss", "treffen": "triff", "sehen": "sieh"}
BEER = next(verb for verb in BY_NAME["trinken"] if verb.subjects == ("adult",))
ORDERS = frames(
    "öffnen schließen essen trinken lesen schreiben putzen waschen aufräumen kaufen bringen geben zeigen "
    "schicken helfen warten fragen antworten zuhören anrufen abholen einladen einschalten ausschalten gehen "
    "bleiben fahren füttern bezahlen nehmen schneiden mitbringen vorlesen lernen schlafen beeilen erklären")
WARNINGS = frames("vergessen verlieren verkaufen öffnen schließen essen trinken fragen anrufen einladen "
                  "kaufen weinen warten")


def imperative(rng: random.Random) -> Pair:
    """Öffne bitte das Fenster!"""
    who = pronoun(pick(rng, ("du", "ihr")))
    no = chance(rng, 0.25)
    verbs = WARNINGS if no else ORDERS
    verb = pick(rng, [verb for verb in verbs if verb.objects != BEER.objects])
    clause = make(rng, "past", [verb], who, timed=0, placed=0.1, negated=1 if no else 0)
    negated = clause.negated
    if no and not negated:
        return imperative(rng)
    clause = clause._replace(manner=("", ""))
    if who.person == 4:
        order = present(verb.base, verb.third)[4]
    else:
        stem = present(verb.base, verb.third)[0].removesuffix("e")
        hard = stem[-1] in "td" or stem.endswith(("ffn", "er"))
        order = IMPERATIVE.get(verb.base, stem + "e" if hard else stem)
    reflexive = REFLEXIVE[who.person] if verb.reflexive else ""
    rest = join(order, reflexive, *clause.middle(), verb.prefix.strip())
    english = join("do not" if no else "", clause.english("infinitive"))
    if chance(rng, 0.4):
        return finish(f"bitte {rest}", f"please {english}", "!")
    return finish(rest, english, "!")


CAUSES = [("wegen des Regens", "because of the rain", "in"),
          ("wegen des Schnees", "because of the snow", "in"),
          ("wegen der Hitze", "because of the heat", "any"), ("trotz des Regens", "despite the rain", "out"),
          ("trotz der Kälte", "despite the cold", "out"),
          ("trotz des schlechten Wetters", "despite the bad weather", "out"),
          ("während der Reise", "during the journey", "mind"),
          ("während des Konzerts", "during the concert", "quiet"),
          ("während des Films", "during the film", "quiet")]


def circumstance(rng: random.Random) -> Pair:
    """Wegen des Regens bleiben wir zu Hause: prepositions with the genitive."""
    de, en, side = pick(rng, CAUSES)
    verbs = {"in": BY_NAME["bleiben"], "any": BY_NAME["bleiben"] + frames("schwimmen"), "out": OUTSIDE
             + frames("einkaufen ausgehen"),
             "mind": frames("lesen schlafen schreiben hören"),
             "quiet": frames("schlafen lachen weinen")}[side]
    when = "past" if de.startswith("während") else pick(rng, PRESENT_OR_PAST)
    clause = make(rng, when, verbs, timed=0, placed=0, negated=0)._replace(manner=("", ""))
    if clause.verb.infinitive == "lachen" or clause.verb.infinitive == "weinen":
        clause = clause._replace(objects=())
    if clause.verb.infinitive == "bleiben":
        place = pick(rng, (("zu Hause", "at home"), ("im Hotel", "at the hotel"),
                           ("in der Schule", "at school"), ("im Büro", "at the office")))
        clause = clause._replace(place=place)
    if chance(rng, 0.6):
        return finish(clause.german(front=de), f"{en} {clause.english()}")
    clause = clause._replace(time=(de, en))
    return finish(clause.german(), clause.english())


def coordination(rng: random.Random) -> Pair:
    """Der Vater kocht und die Mutter liest; er sucht den Hund, aber er kann ihn nicht finden."""
    style = rng.random()
    if style < 0.3:
        search = make(rng, "now", SEEK, negated=0)
        thing = search.objects[0].phrase
        if thing.noun is None or echo(search.subject) is None:
            return coordination(rng)
        it = ("sie", "them") if thing.plural else {"m": ("ihn", "it"), "f": ("sie", "it"),
                                                   "n": ("es", "it")}[thing.noun.gender]
        if thing.noun.group == "kin" and not thing.plural:
            it = ("ihn", "him") if thing.noun.gender == "m" else ("sie", "her")
        again = echo(search.subject)
        can = Clause(again, BY_NAME["finden"][0], modal="können", negated=True,
                     objects=(Object(1, "", "", Phrase((it[0],) * 4, it[1], it[1], 2, light=True)),))
        return finish(f"{search.german()}, aber {can.german()}", f"{search.english()}, but {can.english()}")
    if style < 0.65:
        when = pick(rng, PRESENT_OR_PAST)
        first = make(rng, when, LASTING, timed=0.3, negated=0)._replace(manner=("", ""))
        second = make(rng, when, LASTING, timed=0, negated=0,
                      nouns_used=(first.subject.noun,))._replace(manner=("", ""))
        if second.verb == first.verb or same_one(first.subject, second.subject):
            return coordination(rng)
        de, en = pick(rng, (("und", "and"), (", aber", ", but")))
        gap = "" if de[0] == "," else " "
        return finish(f"{first.german()}{gap}{de} {second.german()}",
                      f"{first.english()}{gap}{en} {second.english()}")
    if style < 0.85:
        subject = someone(rng)
        first = narrated(rng, EVERYDAY, subject if subject.person not in (1, 4)
                         and subject.determiner != "ein" else pronoun("er"))
        second = narrated(rng, EVERYDAY, first.subject)
        if second.verb.base == first.verb.base:
            return coordination(rng)
        silent = first.subject._replace(cases=("",) * 4, english="")
        second = second._replace(subject=silent)
        return finish(f"{first.german()} und {second.german()}", f"{first.english()} and {second.english()}")
    subject = subject_of(rng, BY_NAME["trinken"][0])
    if subject.pronoun in ("ich", "wir"):
        return coordination(rng)
    kind, modal = pick(rng, ("food", "drink", "cup", "clothes")), pick(rng, ("möchten", "wollen"))
    first, second = rng.sample(GROUPS[kind], 2)
    verb = BY_NAME[{"food": "essen", "drink": "trinken", "cup": "trinken", "clothes": "kaufen"}[kind]][0]
    one, other = (noun_phrase(rng, noun, ("some",) if kind == "drink" else ("ein",), adjective=0.15)
                  for noun in (first, second))
    both = one._replace(cases=tuple(f"{a} oder {b}" for a, b in zip(one.cases, other.cases)),
                        english_object=f"{one.english} or {other.english}")
    clause = Clause(subject, verb, modal=modal, objects=(Object(1, "", "", both),))
    return finish(clause.german("first"), clause.english("question"), "?")


SEEK = BY_NAME["suchen"]
STARTERS = [("der Film", "the film", "beginnt", "begann", "begins", "began", ""),
            ("das Konzert", "the concert", "beginnt", "begann", "begins", "began", ""),
            ("das Spiel", "the game", "beginnt", "begann", "begins", "began", ""),
            ("die Prüfung", "the exam", "beginnt", "begann", "begins", "began", ""),
            ("der Zug", "the train", "fährt", "fuhr", "leaves", "left", "ab"),
            ("der Bus", "the bus", "fährt", "fuhr", "leaves", "left", "ab"),
            ("die Straßenbahn", "the tram", "fährt", "fuhr", "leaves", "left", "ab"),
            ("der Zug", "the train", "kommt", "kam", "arrives", "arrived", "an"),
            ("der Bus", "the bus", "kommt", "kam", "arrives", "arrived", "an"),
            ("das Museum", "the museum", "öffnet", "öffnete", "opens", "opened", ""),
            ("der Markt", "the market", "öffnet", "öffnete", "opens", "opened", ""),
            ("das Kino", "the cinema", "schließt", "schloss", "closes", "closed", "")]
BASES = {"begins": "begin", "leaves": "leave", "arrives": "arrive", "opens": "open", "closes": "close"}


def schedule(rng: random.Random) -> Pair:
    """Der Zug fährt um halb neun ab."""
    de, en, now_de, past_de, now_en, past_en, prefix = pick(rng, STARTERS)
    hour = clock(rng, False)
    style = rng.random()
    if style < 0.3:
        day = pick(rng, [row for row in TIMES["past"] if "c" in row[2] and row[0] != "heute Morgen"])
        return finish(join(de, past_de, day[0], *hour[:1], prefix), join(en, past_en, day[1], hour[1]))
    if style < 0.4:
        return finish(join("wann", now_de, de, prefix), join("when does", en, BASES[now_en]), "?")
    if style < 0.6:
        return finish(join(now_de, de, hour[0], prefix), join("does", en, BASES[now_en], hour[1]), "?")
    if style < 0.75:
        who = someone(rng, pronouns=0.5)
        knowing = Clause(who, SAYING[1])
        return finish(f"{knowing.german()}, dass {de} {hour[0]} {prefix}{now_de}",
                      f"{knowing.english()} that {en} {now_en} {hour[1]}")
    return finish(join(de, now_de, hour[0], prefix), join(en, now_en, hour[1]))


def figures(rng: random.Random) -> Pair:
    """Das Hemd kostet zwanzig Euro; mein Bruder ist zwölf Jahre alt; er heißt Paul."""
    style = rng.random()
    if style < 0.5:
        noun = pick(rng, [n for g in ("clothes", "dress", "thing", "device", "dishes", "furniture")
                          for n in GROUPS[g]])
        many = chance(rng, 0.2)
        thing = noun_phrase(rng, noun, ("die",) if many else ("der", "dieser"), adjective=0.5)
        past = chance(rng, 0.3)
        verb = COST
        finite = german_verb(verb, thing.person, "past" if past else "present")[0]
        form = "past" if past else "simple"
        if chance(rng, 0.3):
            aux, words = english_verb(verb.english, thing.person, form, bare=True)
            return finish(f"wie viel {finite} {thing.cases[0]}", f"how much {aux} {thing.english} {words}",
                          "?")
        dear = noun.group in ("device", "furniture")
        number = pick(rng, list(NUMBERS)[12 if dear else 0:None if dear else 15])
        _, words = english_verb(verb.english, thing.person, form)
        return finish(f"{thing.cases[0]} {finite} {number} Euro",
                      f"{thing.english} {words} {NUMBERS[number]} euros")
    if style < 0.8:
        young = GROUPS["child"] + [WORDS[word] for word in ("Bruder", "Schwester", "Sohn", "Tochter")]
        noun, chosen = pick(rng, young), rng.random()
        articles = ("mein", "dein", "unser") if noun.group == "kin" else ("der", "dieser")
        who = noun_phrase(rng, noun, articles, adjective=0)
        if chosen < 0.6:
            who = name(rng) if chosen < 0.35 else pronoun(pick(rng, list(PRONOUNS)))
        number = pick(rng, list(NUMBERS)[3:12])
        clause = copula(who, (f"{number} Jahre alt", f"{NUMBERS[number]} years old"),
                        pick(rng, ("present", "present", "past")))
        return finish(clause.german(), clause.english())
    kin = pick(rng, [noun for noun in GROUPS["kin"] + GROUPS["contact"] + GROUPS["pet"]
                     if noun.gender in "mf"])
    who = noun_phrase(rng, kin, ("mein", "dein", "unser"), adjective=0.2)
    called = pick(rng, NAMES["er" if kin.gender == "m" else "sie"])
    if chance(rng, 0.25):
        who = noun_phrase(rng, kin, ("dein",), adjective=0.2)
        return finish(f"wie heißt {who.cases[0]}", f"what is {who.english} called", "?")
    return finish(f"{who.cases[0]} heißt {called}", f"{who.english} is called {called}")


COST = read_verb("kosten", "kostet", "kostete", "hat gekostet", "cost/cost/cost", "s")
RELATIVES = {"m": ("der", "den", "dem", "dessen"), "f": ("die", "die", "der", "deren"),
             "n": ("das", "das", "dem", "dessen"),
             "p": ("die", "die", "denen", "deren")}


def relative(rng: random.Random) -> Pair:
    """Das Buch, das ich gekauft habe, ist interessant; ich kenne den Mann, der im Park arbeitet."""
    style = rng.random()
    when = pick(rng, PRESENT_OR_PAST)
    if style < 0.4:                                             # the man who is reading
        noun = pick(rng, FOLK["person"])
        head = noun_phrase(rng, noun, ("der", "der", "die"))
        verb = pick(rng, [verb for verb in FRAMES_FOR[when] if verb.subjects[0] == "person"
                          or verb.subjects[0] == "adult"
                          and noun.group != "child"])
        gender = "p" if head.plural else noun.gender
        clause = make(rng, when, [verb], head, timed=0.25)
        vague = any(o.phrase.noun and o.phrase.noun.group in (*PEOPLE, "pet", "grazer") and o.case == 1
                    and not o.german
                    for o in clause.objects)
        if vague and gender != "m":         # die Frau, die die Katze sucht: who seeks whom?
            return relative(rng)
        who = head._replace(cases=RELATIVES[gender], english="who", light=True)
        inner = clause._replace(subject=who)
        german, english = inner.german("last"), inner.english()
    elif style < 0.9:                                           # the book that I am reading
        clause = make(rng, when, TRANSITIVE, pronoun(pick(rng, ("ich", "du", "er", "wir", "ihr")))
                      if chance(rng, 0.6) else None,
                      timed=0.25, negated=0)
        thing = clause.objects[-1]
        noun = thing.phrase.noun
        if noun is None or noun.group == "kin" or clause.subject.pronoun in ("sie", "sie (pl)"):
            return relative(rng)
        if clause.subject.noun and noun.group in (*PEOPLE, "pet",
                                                  "grazer") or not noun.plural and chance(rng, 0.7):
            return relative(rng)
        many = thing.phrase.plural
        head = phrase(noun, "der", many, *adjective_of(thing.phrase))
        gender = "p" if head.plural else noun.gender
        inner = without_object(clause)
        pronoun_ = "whom" if noun.group in PEOPLE else "that"
        german = join(thing.german, RELATIVES[gender][thing.case], inner.german("last"))
        english = f"{pronoun_} {inner.english()}"
    else:                                                       # the woman whose car is broken
        noun = pick(rng, GROUPS["adult"] + GROUPS["contact"])
        head = noun_phrase(rng, noun, ("der", "dieser"), adjective=0.2)
        gender = "p" if head.plural else noun.gender
        thing = phrase(pick(rng, POSSESSED), "")
        state = copula(thing, pick(rng, [(row[0], row[2]) for row in PREDICATES[thing.noun.word]]))
        german, english = f"{RELATIVES[gender][3]} {state.german('last')}", f"whose {state.english()}"
    people = noun.group in PEOPLE
    adjectives = [row for row in PREDICATES[noun.word] if row[0] != head.adjective
                  and not (style >= 0.4 and people and row[0] in FLEETING)]
    end = rng.random()
    if end < 0.4 and adjectives:
        row = pick(rng, adjectives)
        past = "past" if when == "past" and noun.group in USED_UP | {"topic"} else "present"
        state = copula(head, (row[0], row[2]), past)
        return finish(f"{head.cases[0]}, {german}, {state.german().removeprefix(head.cases[0] + ' ')}",
                      f"{head.english} {english} {state.english().removeprefix(head.english + ' ')}")
    if end < 0.6:
        be = "sind" if head.plural else "ist"
        return finish(f"das {be} {head.cases[0]}, {german}",
                      f"{'those are' if head.plural else 'that is'} {head.english_object} {english}")
    if end < 0.75 and not people and noun.group in PERSONAL | {"text", "mail", "vehicle", "dishes"}:
        be = ("wo sind", "where are") if head.plural else ("wo ist", "where is")
        return finish(f"{be[0]} {head.cases[0]}, {german}", f"{be[1]} {head.english} {english}", "?")
    if people:
        seeing = Clause(someone(rng, pronouns=0.6), KNOW, objects=(Object(1, "", "", head),))
    elif noun.group in ("clothes", "dress", "thing", "piece", "device", "furniture", "vehicle", "text",
                        "home", "building"):
        seeing = Clause(pronoun(pick(rng, ("ich", "wir", "er"))), LIKE, objects=(Object(1, "", "", head),))
    else:
        return relative(rng)
    if seeing.subject.noun == noun:
        return relative(rng)
    return finish(f"{seeing.german()}, {german}", f"{seeing.english()} {english}")


FLEETING = set("müde krank hungrig durstig traurig nervös wütend".split())
KNOW, LIKE = BY_NAME["kennen"][0], BY_NAME["mögen"][0]
TRANSITIVE = [verb for verb in PERSONS if verb.objects
              and verb.infinitive not in ("haben", "gehören", "putzen")
              and not any(isinstance(c, Phrase) for c in verb.objects[-1][3])]


def superlative(rng: random.Random) -> Pair:
    """Das ist das älteste Haus der Stadt; Anna ist am jüngsten."""
    if chance(rng, 0.3):
        who = name(rng) if chance(rng, 0.4) else noun_phrase(rng, pick(rng, GROUPS["kin"][:10]),
                                                             ("mein", "dein", "unser"))
        row = pick(rng, [row for row in PREDICATES["person"] + PREDICATES["adult"] if row[1]])
        return finish(f"{who.cases[0]} ist am {COMPARISONS[row[0]][1]}en",
                      f"{who.english} is the {COMPARISONS[row[0]][3]}")
    area, noun = pick(rng, (("Stadt", "city"), ("Dorf", "village"))), pick(rng, GROUPS["building"])
    pool = [row for row in PREDICATES[noun.word] if row[1] and row[0] != "ruhig"]
    genitive, english = phrase(WORDS[area[0]]).cases[3], f"in the {area[1]}"
    if chance(rng, 0.5):
        noun = pick(rng, SHOPPABLE)
        pool = [row for row in PREDICATES[noun.word] if row[1]
                and row[0] not in ("sauber", "schmutzig", "nass")]
        genitive, english = "in diesem Geschäft", "in this shop"
    row = pick(rng, pool)
    best = phrase(noun, "der", False, COMPARISONS[row[0]][1], COMPARISONS[row[0]][3])
    style = rng.random()
    if style < 0.4:
        return finish(f"das ist {best.cases[0]} {genitive}", f"that is {best.english} {english}")
    verbs = frames("besuchen fotografieren") if english != "in this shop" else frames("kaufen suchen")
    verb = pick(rng, [verb for verb in verbs if verb.objects and noun in verb.objects[-1][3]] or [KNOW])
    clause = make(rng, pick(rng, ("now", "past", "modal")), [verb], negated=0, placed=0, timed=0)
    clause = clause._replace(objects=(clause.objects[0]._replace(phrase=best),), place=(genitive, english))
    return finish(clause.german(), clause.english())


SHOPPABLE = [noun for group in ("clothes", "dress", "thing", "device", "furniture") for noun in GROUPS[group]]

# ----------------------------------------------------------------------------------------------- corpus

TEMPLATES: list[Callable[[random.Random], Pair]] = 4 * [statement] + 3 * [time_first, question, w_question,
                                                                          position, relative] + 2 * [
    description, reason, content, sequence, condition, purpose, coordination] + [
    place_first, object_first, comparison, superlative, profession, there_is, infinitive, passive, since,
    pleasing,
    imperative, circumstance, schedule, figures]


def corpus(seed: int = 1, train: int = 40_000, valid: int = 1_000,
           test: int = 1_000) -> dict[str, list[Pair]]:
    """{"train": [(German, English), ...], "valid": ..., "test": ...}: the same for the same seed and sizes.

    No German sentence occurs twice, in one part or in two. Raises ValueError for more than there is to say.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    if min(sizes.values()) < 0:
        raise ValueError(f"a part of the corpus cannot have {min(sizes.values())} sentences")
    rng = random.Random(seed)
    seen: set[str] = set()
    pairs: list[Pair] = []
    repeats = 0
    total = sum(sizes.values())
    while len(pairs) < total:
        pair = pick(rng, TEMPLATES)(rng)
        if pair[0] in seen:
            repeats += 1
            if repeats == 10_000:
                raise ValueError(f"{total:,} sentences were asked for, and there are about {len(pairs):,}")
            continue
        repeats = 0
        seen.add(pair[0])
        pairs.append(pair)
    rest = iter(pairs)
    return {part: [next(rest) for _ in range(size)] for part, size in sizes.items()}


def main() -> None:
    """Prints sample pairs."""
    parser = argparse.ArgumentParser(description="German-English sentence pairs, for proof-reading.")
    parser.add_argument("pairs", nargs="?", type=int, default=20, help="how many (20)")
    parser.add_argument("--seed", type=int, default=1, help="which (1)")
    arguments = parser.parse_args()
    for german, english in corpus(arguments.seed, arguments.pairs, 0, 0)["train"]:
        print(german, english, sep="\t")


if __name__ == "__main__":
    main()
